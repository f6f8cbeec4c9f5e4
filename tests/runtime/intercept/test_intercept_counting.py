"""Every launch is counted once, under its shape, however it is written."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
from tests.runtime.intercept import strangers
from tests.runtime.intercept.strangers import cdiv_grid, launch_affine, launch_rows

from retuned.runtime.intercept import registry as kernels_module
from retuned.runtime.intercept.hook import Interceptor
from retuned.runtime.intercept.observed import joined, page, records
from retuned.runtime.intercept.registry import Kernel


def kernel_of(hook: Interceptor, name: str) -> Kernel:
    (found,) = [each for each in hook.kernels() if each.name.endswith(f":{name}")]
    return found


def described(hook: Interceptor, name: str) -> list[dict[str, Any]]:
    return list(records(kernel_of(hook, name)))


def test_launches_are_counted_by_shape_and_do_what_they_did(
    hook: Interceptor, interpreted: bool
) -> None:
    for n in (40, 40, 64, 40):
        output, expected = launch_affine(n)
        assert not interpreted or torch.equal(output, expected)
    first, second = described(hook, "affine")
    assert (first["count"], second["count"]) == (3, 1)
    assert [each["params"][2]["value"] for each in (first, second)] == [40, 64]
    assert [each["grid"] for each in (first, second)] == [[3, 1, 1], [4, 1, 1]]
    assert kernel_of(hook, "affine").total() == 4


def test_the_grid_alone_makes_another_shape(hook: Interceptor) -> None:
    for m in (2, 5, 5):
        launch_rows(m, 8)
    assert [(each["grid"], each["count"]) for each in described(hook, "rows")] == [
        ([5, 1, 1], 2),
        ([2, 1, 1], 1),
    ]


def test_the_record_says_all_that_a_definition_needs(hook: Interceptor) -> None:
    launch_affine(40)
    (record,) = described(hook, "affine")
    assert record["kernel"] == f"{strangers.__name__}:affine"
    x, y, n, factor, block = record["params"]
    assert (x["kind"], x["dtype"], x["numel"], x["aligned16"]) == ("pointer", "float32", 40, True)
    assert y["name"] == "y_ptr"
    assert (n["kind"], n["dtype"], n["value"]) == ("int", "int32", 40)
    assert (factor["kind"], factor["value"]) == ("float", 0.5)
    assert (block["kind"], block["value"]) == ("constexpr", 16)
    assert 'meta["BLOCK"]' in record["grid_source"]
    assert record["unresolved"] == []


def test_the_source_holds_the_helpers_and_constants_and_is_valid(hook: Interceptor) -> None:
    from retuned.runtime.triton.contract import check_source

    launch_affine(40)
    (record,) = described(hook, "affine")
    text = record["source"]
    assert "OFFSET = tl.constexpr(2)" in text
    assert "GAIN = tl.constexpr(3)" in text
    assert check_source(text, entry="affine").functions == ("bump", "affine")


def test_arguments_by_position_by_name_and_by_default_are_the_same_launch(
    hook: Interceptor, interpreted: bool
) -> None:
    x, y = torch.ones(16), torch.zeros(16)
    launches: list[Any] = [
        lambda: strangers.rows[(2,)](x, y, 8, 16),
        lambda: strangers.rows[(2,)](x, y, n_cols=8, BLOCK=16),
        lambda: strangers.rows[(2,)](*[x, y, 8], BLOCK=16, DOUBLE=True),
        lambda: strangers.rows[(2, 1)](y_ptr=y, x_ptr=x, n_cols=8, BLOCK=16),
        lambda: strangers.rows[(2,) if interpreted else [2]](x, y, 8, 16),
    ]
    for launch in launches * 2:
        y.zero_()
        launch()
        assert not interpreted or torch.equal(y, x * 2)
    found = described(hook, "rows")
    assert sum(each["count"] for each in found) == 10
    for each in found:
        assert [p["value"] for p in each["params"]] == [None, None, 8, 16, True]
        assert each["grid"] == [2, 1, 1]


def test_a_number_that_may_be_left_out_is_part_of_the_shape(hook: Interceptor) -> None:
    x, y = torch.ones(16), torch.zeros(16)
    for _ in range(2):
        strangers.shifted[(1,)](x, y, 9)
        strangers.shifted[(1,)](x, y, 9, 5)
        strangers.shifted[(1,)](x, y, 9, by=5)
        strangers.shifted[(1,)](x, y, 9, 7)
        strangers.shifted[(1,)](x, y, 9, by=7)
    counts: dict[Any, int] = {}
    for each in described(hook, "shifted"):
        value = each["params"][3]["value"]
        counts[value] = counts.get(value, 0) + each["count"]
    assert counts == {3: 2, 5: 4, 7: 4}


def test_a_pointer_that_may_be_left_out_is_no_part_of_the_shape(hook: Interceptor) -> None:
    x, y = torch.ones(16), torch.zeros(16)
    for by_name in (True, False) * 3:
        scratch = torch.zeros(16)  # a key that had it would keep the server's memory
        if by_name:
            strangers.spare[(1,)](x_ptr=x, y_ptr=y, n=9, scratch_ptr=scratch)
        else:
            strangers.spare[(1,)](x, y, 9, scratch)
        strangers.spare[(1,)](x, y, 9)
    cells = list(kernel_of(hook, "spare").cells())
    assert sum(each.count for each in cells) == 12
    assert len(cells) <= 3  # left out, by name and by position


def test_an_autotuner_and_a_heuristic_launch_through_the_same_place(hook: Interceptor) -> None:
    x, y = torch.ones(32), torch.zeros(32)
    strangers.tuned[cdiv_grid(32)](x, y, 32)
    strangers.by_rule[(1,)](x, y, 30)
    strangers.plain_length[(2,)](x, y, 30, BLOCK=16)
    strangers.plain_length[(2,)](x, y, 31, BLOCK=16)
    (tuned,) = described(hook, "tuned")
    assert (tuned["params"][3]["value"], tuned["options"]["num_warps"]) == (16, 1)
    (ruled,) = described(hook, "by_rule")
    assert ruled["params"][3]["value"] == 32
    assert sorted(each["params"][2]["value"] for each in described(hook, "plain_length")) == [
        30,
        31,
    ]


def test_element_types_and_alignment_make_other_shapes(hook: Interceptor) -> None:
    wide = torch.zeros(33, dtype=torch.float32)
    half = torch.zeros(33, dtype=torch.float16)
    for x in (wide[:32], wide[1:], half[:32], wide[:32]):
        strangers.plain_length[(2,)](x, x, 32, BLOCK=16)
    found = described(hook, "plain_length")
    assert [each["count"] for each in found] == [2, 1, 1]
    kinds = {(each["params"][0]["dtype"], each["params"][0]["aligned16"]) for each in found}
    assert kinds == {("float32", True), ("float32", False), ("float16", True)}


def test_a_kernel_whose_source_is_nowhere_is_counted_and_has_no_text(
    hook: Interceptor, interpreted: bool
) -> None:
    if not interpreted:
        pytest.skip("Triton itself refuses to compile a function without a file")
    names: dict[str, Any] = {"tl": triton.language}
    exec("def ghost(x_ptr, n):\n    pass\n", names)
    names["ghost"].__module__ = "nowhere"
    ghost = triton.jit(names["ghost"])
    ghost[(1,)](torch.ones(4), 4)
    (record,) = described(hook, "ghost")
    assert (record["source"], record["count"]) == (None, 1)
    assert record["unresolved"] == ["source-missing"]
    assert record["source_digest"].startswith("sha256:")


def test_keys_are_bounded_and_no_launch_is_lost(
    hook: Interceptor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels_module, "MAX_KEYS", 8)
    for _ in range(5):
        launch_rows(1, 8)
    for m in range(2, 32):
        launch_rows(m, 2)
    kernel = kernel_of(hook, "rows")
    assert kernel.total() == 35
    assert len(list(kernel.cells())) <= 8
    assert max(each["count"] for each in described(hook, "rows")) == 5  # the usual one has stayed


def test_a_page_is_bounded_and_goes_on_where_it_ended(
    hook: Interceptor, monkeypatch: pytest.MonkeyPatch
) -> None:
    from retuned.runtime.intercept import observed

    for n in range(20, 30):
        launch_affine(n)
    launch_rows(2, 8)
    every = joined(page(hook.kernels(), {}))
    monkeypatch.setattr(observed, "MAX_PAGE_BYTES", 4000)
    found: list[dict[str, Any]] = []
    after: int | None = 0
    while after is not None:
        answer = page(hook.kernels(), {"after": after})
        found += joined(answer)
        after = answer["next"]
    assert len(every) == 11
    assert found == every


def test_uninstalled_everything_is_as_it_was(hook: Interceptor) -> None:
    launch_rows(2, 8)
    hook.uninstall()
    hook.uninstall()
    launch_rows(2, 8)
    assert hook.kernels() == []
    assert "retuned" not in repr(triton.runtime.jit.JITFunction.run)
    assert not hasattr(triton.runtime.jit.JITFunction.run, "__retuned__")
    assert hook.install() == hook.install()
    launch_rows(2, 8)
    assert kernel_of(hook, "rows").total() == 1


def test_a_second_interceptor_stays_off_and_says_so(hook: Interceptor) -> None:
    other = Interceptor()
    assert set(other.install().values()) <= {"intercepted-already", "triton-missing"}
    other.uninstall()
    launch_rows(2, 8)
    assert kernel_of(hook, "rows").total() == 1


def test_what_a_launch_raises_reaches_the_server_as_it_is(hook: Interceptor) -> None:
    for _ in range(2):
        with pytest.raises(TypeError, match=r"missing|argument"):
            strangers.rows[(2,)](torch.ones(4))
    assert all(kernel.total() == 0 for kernel in hook.kernels())


def test_launches_are_the_servers_own_while_the_hook_is_out(
    hook: Interceptor, interpreted: bool
) -> None:
    launch_affine(40)
    (before,) = hook.kernels()
    assert before.total() == 1
    for _ in range(2):  # again, although it is out
        hook.suspend()
    output, expected = launch_affine(40)
    assert not interpreted or torch.equal(output, expected)
    assert before.total() == 1
    for _ in range(2):
        hook.resume()
    launch_affine(40)
    assert (before.total(), hook.kernels()) == (2, [before])
    hook.suspend()
    hook.uninstall()
    hook.resume()
    launch_affine(40)
    assert hook.kernels() == []
