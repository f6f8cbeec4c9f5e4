"""Tables and routes in the self-check: inputs that mean something are made up as they must be."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.expect import raises_code  # noqa: E402

from retuned import catalog  # noqa: E402
from retuned.contract import Definition, Language, Solution  # noqa: E402
from retuned.runtime import attach  # noqa: E402
from retuned.runtime.core.sample_inputs import make  # noqa: E402
from retuned.runtime.schema import Refused, parse_spec  # noqa: E402
from retuned.runtime.shadow import selfcheck  # noqa: E402
from retuned.runtime.triton.variant import TritonVariant  # noqa: E402
from retuned.store.artifact_folder import manifest_of  # noqa: E402

ATTENTION = catalog.get("paged_attention_bf16_h4_g2_d16_p4", language=Language.TRITON)
GROUPED = catalog.get("moe_gemm_bf16_e4_t2_n16_k32", language=Language.TRITON)


@pytest.fixture(autouse=True)
def interpreter() -> None:
    import triton

    if not triton.knobs.runtime.interpret:
        pytest.skip("runs in Triton's interpreter")


def attend(q: Any, k: Any, v: Any, table: Any, seen: Any) -> Any:
    """The server's own attention; an index beyond the cache raises, as a stranger's might crash."""
    page, groups = k.shape[1], k.shape[2]
    out = torch.empty_like(q)
    for b in range(q.shape[0]):
        length = int(seen[b])
        assert 1 <= length <= table.shape[1] * page
        pages = table[b, : -(-length // page)].long()
        key, value = (c.float()[pages].flatten(0, 1)[:length] for c in (k, v))
        query = q[b].float().view(groups, -1, q.shape[2])
        weights = torch.einsum("gid,sgd->gis", query, key).div(q.shape[2] ** 0.5).softmax(-1)
        out[b] = torch.einsum("gis,sgd->gid", weights, value).flatten(0, 1).to(q.dtype)
    return out


def multiply(x: Any, w: Any, order: Any, ends: Any, weight: Any) -> Any:
    """The server's own grouped product."""
    tokens, slots = order.shape
    routes, start = order.reshape(-1).long(), 0
    y = torch.zeros(tokens * slots, w.shape[1])
    assert routes.sort().values.tolist() == list(range(tokens * slots))
    for expert, end in enumerate(ends.tolist()):
        assert start <= end
        mine = routes[start:end]
        y[mine] = x[mine // slots].float() @ w[expert].float().T
        start = end
    assert start == tokens * slots
    return (y * weight.reshape(-1, 1)).to(x.dtype).view(tokens, slots, -1)


def deliver(folder: Path, solution: Solution, definition: Definition) -> Path:
    source = solution.sources[0].content.encode()
    target = folder / solution.digest[7:]
    target.mkdir()
    (target / "kernel.py").write_bytes(source)
    sha256 = hashlib.sha256(source).hexdigest()
    body = manifest_of(
        solution, definition.model_dump(mode="json"), sha256, file_name="kernel.py"
    ) | {"grid": list(solution.grid)}
    (target / "artifact.json").write_text(json.dumps(body))
    return target


def order(solution: Solution, *, guard: Mapping[str, list[int]]) -> dict[str, Any]:
    return {
        "id": f"swap {solution.digest}",
        "kind": "swap",
        "definition": solution.definition,
        "artifact": solution.digest,
        "guard": {"bounds": guard},
        "epoch": 1,
        "shadow_every": 1,
    }


class Server:
    """One slot over a kernel of the catalog; the server's definition may be an older version's."""

    def __init__(self, folder: Path, entry: Any, original: Any, *, rules: bool = True) -> None:
        self.folder, self.entry = folder, entry
        body = entry.definition.model_dump(mode="json")
        for spec in body["inputs"].values() if not rules else ():
            spec.pop("values", None)
        self.runtime = attach(server="test")
        self.slot = self.runtime.slot(body, original)

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        return self.runtime._host.answer({"op": op, **fields})

    def swap(self, solution: Solution, **guard: list[int]) -> int:
        target = deliver(self.folder, solution, self.entry.definition)
        said = order(solution, guard=guard)
        prepared = self.ask("prepare", order=said, artifact_dir=str(target))
        self.ask("commit", order=said)
        return int(prepared["shapes"])

    def sample(self) -> dict[str, Any]:
        (sample,) = self.ask("samples")["samples"]
        return dict(sample)


@pytest.fixture(params=[True, False], ids=["with-rules", "older-server"])
def attention(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path, ATTENTION, attend, rules=request.param)
    yield server
    server.runtime.close()


def batch() -> list[Any]:
    made = torch.Generator().manual_seed(3)
    q, k, v = (
        torch.randn(shape, generator=made).to(torch.bfloat16)
        for shape in ((2, 4, 16), (6, 4, 2, 16), (6, 4, 2, 16))
    )
    table = torch.randint(0, 6, (2, 3), generator=made, dtype=torch.int32)
    return [q, k, v, table, torch.tensor([5, 12], dtype=torch.int32)]


def test_paged_attention_is_checked_on_a_table_within_its_cache_and_serves(
    attention: Server,
) -> None:
    attention.slot(*batch())
    assert attention.swap(ATTENTION.incumbent, B=[1, 4], C=[1, 8], W=[1, 4]) == 1
    answer = attention.slot(*batch())
    torch.testing.assert_close(answer, attend(*batch()), rtol=2e-2, atol=2e-2)
    sample = attention.sample()
    assert (sample["swapped_launches"], sample["shadow_checks"]) == (1, 1)
    assert sample["worst_ratio"] <= 1.0
    assert sample["tripped"] == ""


def test_a_cache_that_there_is_no_room_for_twice_is_checked_with_a_smaller_one(
    attention: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    attention.slot(*batch())
    pages = 4 * 2 * 16 * 2 * 2  # bytes of a page, keys and values
    monkeypatch.setattr(selfcheck, "MAX_CHECK_BYTES", 3 * pages + 1024)
    checked: list[tuple[int, ...]] = []
    prepare = TritonVariant.prepare

    def watched(self: TritonVariant, key: tuple[int, ...]) -> None:
        checked.append(key)
        prepare(self, key)

    monkeypatch.setattr(TritonVariant, "prepare", watched)
    assert attention.swap(ATTENTION.incumbent, B=[2, 2], C=[6, 6], W=[3, 3]) == 1
    assert checked == [(2, 3, 3)], "six pages were seen; the guard is about what was timed"
    monkeypatch.setattr(selfcheck, "MAX_CHECK_BYTES", 64)
    with raises_code(Refused, "self-check-no-shape"):
        attention.swap(ATTENTION.incumbent.model_copy(update={"params": other_params()}))


def other_params() -> dict[str, int | str]:
    return dict(ATTENTION.incumbent.params) | {"num_warps": 2}


def test_a_wrong_paged_attention_is_refused_by_the_self_check(attention: Server) -> None:
    attention.slot(*batch())
    source = ATTENTION.incumbent.sources[0]
    text = source.content.replace("page.to(tl.int64) * P", "(page + 1) // 2 * 2 * P")
    if text == source.content:
        text = source.content.replace("keys // P", "keys // (2 * P)")
    assert text != source.content
    wrong = ATTENTION.incumbent.model_copy(
        update={"sources": (source.model_copy(update={"content": text}),)}
    )
    with pytest.raises(Refused) as refused:
        attention.swap(wrong, B=[1, 4], C=[1, 8], W=[1, 4])
    assert refused.value.reason == "self-check-failed"
    assert attention.ask("slots")["slots"][0]["active"] is None


def test_a_grouped_product_is_checked_on_routes_that_are_each_there_once(tmp_path: Path) -> None:
    server = Server(tmp_path, GROUPED, multiply)
    try:
        assert server.swap(GROUPED.incumbent, M=[1, 5]) == 2, "no traffic yet: both corners"
        solution = GROUPED.incumbent
        source = solution.sources[0]
        text = source.content.replace("end <= place", "end < place")
        text = text.replace("place < last", "place < last - 1")
        assert text != source.content
        wrong = solution.model_copy(
            update={"sources": (source.model_copy(update={"content": text}),)}
        )
        with pytest.raises(Refused) as refused:
            server.swap(wrong, M=[1, 5])
        assert refused.value.reason == "self-check-failed"
    finally:
        server.runtime.close()


def test_every_input_of_the_catalog_whose_numbers_mean_something_says_what_holds() -> None:
    for family in catalog.families():
        lengths = {"D": 16, "T": 1, "K": 16, **dict.fromkeys("EGHNPQ", 16)}
        name = family.name({axis: lengths.get(axis, 16) for axis in family.constants})
        for tensor, spec in catalog.get(name).definition.inputs.items():
            if spec.dtype in ("int32", "int64") and not spec.constant:
                assert spec.values is not None, f"{name}: {tensor}"


def spec_of(rule: Mapping[str, Any] | None, *, dtype: str = "int32") -> Any:
    body = {
        "name": "k",
        "op_type": "k",
        "axes": {"M": {"type": "var"}, "T": {"type": "const", "value": 3}},
        "inputs": {"x": {"shape": ["M", "T"], "dtype": dtype, "values": rule}},
        "outputs": {"y": {"shape": ["M"], "dtype": "float32"}},
    }
    return parse_spec(body).inputs[0]


def made(rule: Mapping[str, Any], *, m: int, seed: int = 0, dtype: str = "int32") -> Any:
    spec = spec_of(rule, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    return make(torch, spec, spec.values, {"M": m, "T": 3}, generator=generator)


@settings(max_examples=30, deadline=None)
@given(m=st.integers(1, 40), seed=st.integers(0, 2**31))
def test_numbers_are_as_their_rule_says_at_any_length(m: int, seed: int) -> None:
    inside = made({"like": "integers", "low": 1, "high": "M * T - 1"}, m=m, seed=seed)
    assert 1 <= int(inside.min()) <= int(inside.max()) <= 3 * m - 1
    rising = made({"like": "offsets", "high": "M * T"}, m=m, seed=seed)
    assert bool((rising.diff(dim=1) >= 0).all())
    assert rising[:, -1].tolist() == [3 * m] * m
    every = made({"like": "permutation"}, m=m, seed=seed)
    assert sorted(every.flatten().tolist()) == list(range(3 * m))
    rows = made({"like": "rows-permuted"}, m=m, seed=seed)
    assert all(sorted(row) == [0, 1, 2] for row in rows.tolist())
    assert (inside.dtype, rising.dtype, every.dtype) == (torch.int32,) * 3
    real = made({"like": "uniform", "low": 0.5, "high": 2}, m=m, seed=seed, dtype="bfloat16")
    assert 0.5 <= float(real.min()) <= float(real.max()) <= 2.0


@pytest.mark.parametrize(
    ("rule", "dtype"),
    [
        ({"like": "integers", "low": 0, "high": "M - 9"}, "int32"),
        ({"like": "integers", "low": 0, "high": 256}, "uint8"),
        ({"like": "integers", "low": -1, "high": 4}, "uint8"),
        ({"like": "integers", "low": 0, "high": 2**31}, "int32"),
        ({"like": "integers", "low": 0.5, "high": 4}, "int32"),
        ({"like": "integers", "high": "M ** M ** M"}, "int32"),
        ({"like": "integers", "high": "__import__('os')"}, "int32"),
        ({"like": "integers", "high": "Q"}, "int32"),
        ({"like": "integers", "high": "M // (M - M)"}, "int32"),
        ({"like": "permutation"}, "bool"),
        ({"like": "uniform", "low": 0, "high": 1}, "int32"),
        ({"like": "uniform", "low": 2, "high": 1}, "float32"),
        ({"like": "uniform", "low": "M", "high": 1}, "float32"),
        ({"like": "uniform", "low": float("nan"), "high": 1}, "float32"),
    ],
)
def test_a_rule_without_sense_draws_nothing(rule: Mapping[str, Any], dtype: str) -> None:
    with pytest.raises(Refused) as refused:
        made(rule, m=4, dtype=dtype)
    assert refused.value.reason == "values-invalid"


@pytest.mark.parametrize(
    "rule",
    [[], {"like": "sorted"}, {"like": ["integers"]}, {"like": "integers", "low": True}],
)
def test_a_definition_with_a_rule_that_nobody_knows_is_refused(rule: Any) -> None:
    with pytest.raises(Refused) as refused:
        spec_of(rule)
    assert refused.value.reason == "definition-invalid"


def test_rules_are_no_part_of_what_is_launched() -> None:
    with_rule, without = spec_of({"like": "permutation"}), spec_of(None)
    assert with_rule == without
    assert with_rule.values is not None
