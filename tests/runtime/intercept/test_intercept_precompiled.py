"""Code that came along is loaded as it is: where its key fits nothing is compiled.

The lab compiles in its own process; the server is played by a device that launches nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from tests.runtime.intercept import strangers
from tests.runtime.intercept.test_intercept_swapping import World

from retuned.contract import Definition, Solution
from retuned.experiment.local import Precompiler
from retuned.lab.languages.triton_precompile import precompile
from retuned.runtime.artifacts.precompiled import PRECOMPILED_FILE, PrecompiledEntry, pack
from retuned.runtime.core import slot_registry
from retuned.runtime.core.host import RuntimeHost
from retuned.runtime.core.slots import Slot
from retuned.runtime.intercept.hook import Interceptor
from retuned.runtime.schema import Refused, parse_spec
from retuned.runtime.triton import precompiled
from retuned.runtime.triton.launch import TritonSteps
from retuned.runtime.triton.precompiled import Shipped, Tally

SOURCE = '''"""Two launches with scratch in between, and one that stands for another kernel."""

import triton
import triton.language as tl


@triton.jit
def parts(x, partial, M, N: tl.constexpr, SPLITS: tl.constexpr):
    row, split = tl.program_id(0), tl.program_id(1)
    at = split * (N // SPLITS) + tl.arange(0, N // SPLITS)
    tl.store(partial + split * M + row, tl.sum(tl.load(x + row * N + at), axis=0))


@triton.jit
def total(partial, y, M, SPLITS: tl.constexpr):
    row = tl.program_id(0)
    tl.store(y + row, tl.sum(tl.load(partial + tl.arange(0, SPLITS) * M + row), axis=0))


@triton.jit
def copied(x, out, n, TILE: tl.constexpr):
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)
'''
SUMS: dict[str, Any] = {
    "name": "row_sums",
    "op_type": "reduction",
    "axes": {"M": {"type": "var"}, "N": {"type": "const", "value": 64}},
    "inputs": {"x": {"shape": ["M", "N"], "dtype": "float32"}},
    "outputs": {"y": {"shape": ["M"], "dtype": "float32"}},
    "reference": "def run(x):\n    return x.sum(1)\n",
}
COPY: dict[str, Any] = {
    "name": "lifted_copy",
    "op_type": "lifted",
    "axes": {"n": {"type": "var"}},
    "inputs": {"x": {"shape": ["n"], "dtype": "float32"}},
    "outputs": {"out": {"shape": ["n"], "dtype": "float32"}},
    "reference": "def run(x):\n    return x\n",
}
STEPS: list[dict[str, Any]] = [
    {"entry": "parts", "grid": ["M", "SPLITS"], "params": {"num_warps": 1}},
    {"entry": "total", "grid": ["M"]},
]
SCRATCH = [{"name": "partial", "dtype": "float32", "shape": ["SPLITS", "M"]}]
SPLIT = {"SPLITS": 4, "num_warps": 2}


def solution(definition: dict[str, Any], **fields: Any) -> Solution:
    return Solution.model_validate(
        {
            "name": "shipped",
            "definition": definition["name"],
            "language": "triton",
            "sources": [{"path": "kernel.py", "content": SOURCE}],
            "structure": "plain",
            **fields,
        }
    )


@pytest.fixture(scope="module")
def sums(interpreted: bool) -> tuple[PrecompiledEntry, ...]:
    """What the lab ships of the two launches."""
    if interpreted:
        pytest.skip("the interpreter compiles nothing")
    made = solution(SUMS, entry="parts", params=SPLIT, steps=STEPS, scratch=SCRATCH)
    return precompile(made, Definition.model_validate(SUMS), arch="sm_90")


@pytest.fixture(scope="module")
def copied(interpreted: bool) -> tuple[PrecompiledEntry, ...]:
    """What the lab ships of the other one."""
    if interpreted:
        pytest.skip("the interpreter compiles nothing")
    made = solution(COPY, entry="copied", params={"TILE": 64}, grid=["cdiv(n, TILE)"])
    return precompile(made, Definition.model_validate(COPY), arch="sm_90")


@pytest.fixture
def compiler(device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what was compiled, by a Triton whose own cache is empty."""
    if device is None:
        pytest.skip("the interpreter compiles nothing")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    made: list[str] = []
    source = triton.compiler.ASTSource
    stock = source.make_ir

    def make_ir(self: Any, *args: Any, **kwargs: Any) -> Any:
        made.append(self.name)
        return stock(self, *args, **kwargs)

    monkeypatch.setattr(source, "make_ir", make_ir)
    return made


def steps(shipped: Shipped, source: str = SOURCE, **params: Any) -> TritonSteps:
    return TritonSteps(
        source,
        entry="parts",
        params={**SPLIT, **params},
        grid=(),
        tensors=("x", "y"),
        axes=("M", "N"),
        steps=STEPS,
        scratch=SCRATCH,
        shipped=shipped,
    )


def load(made: TritonSteps, rows: int = 7) -> list[Any]:
    dtypes = ["float32"] * 3  # inputs, outputs, scratch
    return [kernel.compile_at([rows, 64], dtypes=dtypes, load=True) for kernel in made.kernels]


# --- where the key fits ---------------------------------------------------------------------------


def test_every_launch_of_a_variant_is_loaded_and_none_is_compiled(
    compiler: list[str], sums: tuple[PrecompiledEntry, ...]
) -> None:
    shipped = Shipped(sums)
    loaded = load(steps(shipped))
    assert compiler == []
    assert shipped.tally == Tally(shipped=2)
    assert [each.kernel for each in loaded] == [entry.code for entry in sums]
    assert [each.name for each in loaded] == ["parts", "total"]


def test_the_same_variant_without_code_is_compiled_and_says_so(compiler: list[str]) -> None:
    shipped = Shipped()
    load(steps(shipped))
    assert compiler == ["parts", "total"]
    assert shipped.tally == Tally(compiled_here=2)


def test_what_triton_has_compiled_before_is_counted_apart(compiler: list[str]) -> None:
    load(steps(Shipped()))
    again = Shipped()
    load(steps(again))
    assert len(compiler) == 2
    assert again.tally == Tally(cached=2)


def test_code_is_for_all_lengths_that_do_not_decide_it(
    compiler: list[str], sums: tuple[PrecompiledEntry, ...]
) -> None:
    shipped = Shipped(sums)
    for rows in (1, 16, 17, 4096):
        load(steps(shipped), rows)
    assert compiler == []


def test_nothing_of_triton_stays_changed(
    compiler: list[str], sums: tuple[PrecompiledEntry, ...]
) -> None:
    del compiler
    from triton.compiler import compiler as module
    from triton.runtime import cache

    load(steps(Shipped(sums)))
    assert module.get_cache_manager is cache.get_cache_manager


def test_code_for_amd_fits_what_servers_there_ask_for(
    compiler: list[str], device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = solution(SUMS, entry="parts", params=SPLIT, steps=STEPS, scratch=SCRATCH)
    entries = precompile(made, Definition.model_validate(SUMS), arch="gfx942")
    target = triton.backends.compiler.GPUTarget("hip", "gfx942", 64)
    monkeypatch.setattr(type(device), "get_current_target", lambda _: target)
    shipped = Shipped(entries)
    assert shipped.for_here() == list(entries)
    loaded = load(steps(shipped))
    assert compiler == []
    assert shipped.tally == Tally(shipped=2)
    assert [each.kernel for each in loaded] == [entry.code for entry in entries]


# --- where it does not ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed",
    [
        {"num_stages": 4},
        {"SPLITS": 8},
        {"source": SOURCE.replace("axis=0))", "axis=0) * 1.0)")},
    ],
)
def test_other_code_than_was_shipped_is_compiled(
    compiler: list[str], sums: tuple[PrecompiledEntry, ...], changed: dict[str, Any]
) -> None:
    shipped = Shipped(sums)
    load(steps(shipped, **changed))
    assert compiler == ["parts", "total"]
    assert shipped.tally == Tally(compiled_here=2)


def test_variables_that_change_what_is_compiled_make_another_key(
    compiler: list[str], sums: tuple[PrecompiledEntry, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISABLE_LLVM_OPT", "1")
    shipped = Shipped(sums)
    load(steps(shipped))
    assert shipped.tally.shipped == 0
    assert len(compiler) == 2


def test_another_device_is_no_error(
    compiler: list[str],
    sums: tuple[PrecompiledEntry, ...],
    device: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        type(device),
        "get_current_target",
        lambda _: triton.backends.compiler.GPUTarget("cuda", 80, 32),
    )
    shipped = Shipped(sums)
    assert shipped.for_here() == []
    load(steps(shipped))
    assert shipped.tally == Tally(compiled_here=2)
    assert len(compiler) == 2


def test_a_triton_that_is_not_as_expected_compiles_as_ever(
    compiler: list[str], sums: tuple[PrecompiledEntry, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precompiled, "_MANAGER", "no_such_name")
    shipped = Shipped(sums)
    load(steps(shipped))
    assert shipped.tally == Tally(compiled_here=2)
    monkeypatch.setenv("RETUNED_COMPILE", "never")
    assert refusal(lambda: load(steps(shipped))) == "precompiled-unsupported"
    assert len(compiler) == 2


def test_code_that_is_not_what_was_verified_is_never_loaded(
    compiler: list[str],
    sums: tuple[PrecompiledEntry, ...],
    device: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded: list[bytes] = []

    def load_binary(_: Any, name: str, code: bytes, *rest: Any) -> Any:
        del name, rest
        loaded.append(code)
        return 1, 2, 32, 0, 1024

    monkeypatch.setattr(type(device), "load_binary", load_binary)
    stock = Shipped._place

    def place(self: Shipped, key: str) -> dict[str, str] | None:
        """Change the file between writing and reading, as only this user could."""
        files = stock(self, key)
        for name, path in (files or {}).items():
            if name.endswith(".cubin"):
                Path(path).write_bytes(b"another")
        return files

    monkeypatch.setattr(Shipped, "_place", place)
    assert refusal(lambda: load(steps(Shipped(sums)))) == "entry-digest-differs"
    assert (loaded, compiler) == ([], [])


def test_code_that_cannot_be_written_down_is_compiled_instead(
    compiler: list[str],
    sums: tuple[PrecompiledEntry, ...],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(**_: Any) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(precompiled, "mkdtemp", full)
    shipped = Shipped(sums)
    load(steps(shipped))
    assert shipped.tally == Tally(compiled_here=2)
    assert "No space left" in caplog.text
    monkeypatch.setenv("RETUNED_COMPILE", "never")
    assert refusal(lambda: load(steps(Shipped(sums)))) == "not-shipped"
    assert len(compiler) == 2


def test_a_child_forked_while_code_is_offered_has_tritons_own_look_up(
    compiler: list[str], sums: tuple[PrecompiledEntry, ...]
) -> None:
    del compiler
    from triton.compiler import compiler as module
    from triton.runtime import cache

    status: list[int] = []

    def during() -> Any:
        assert module.get_cache_manager is not cache.get_cache_manager
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join(200)
        return kernel.compile_at([7, 64], dtypes=["float32"] * 3)

    def fork() -> None:
        child = os.fork()
        if child == 0:
            free = precompiled._LOCK.acquire(blocking=False)
            os._exit(0 if free and module.get_cache_manager is cache.get_cache_manager else 1)
        status.append(os.waitpid(child, 0)[1])

    kernel = steps(Shipped(sums)).kernels[0]
    Shipped(sums).compiled(during)
    assert status == [0]
    assert module.get_cache_manager is cache.get_cache_manager


# --- where nothing may be compiled ----------------------------------------------------------------


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(Refused) as refused:
        call()
    return refused.value.reason


def test_never_takes_what_came_along_and_refuses_the_rest(
    compiler: list[str], sums: tuple[PrecompiledEntry, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETUNED_COMPILE", "never")
    shipped = Shipped(sums)
    load(steps(shipped))
    assert refusal(lambda: load(steps(shipped, num_stages=4))) == "not-shipped"
    assert refusal(lambda: load(steps(Shipped()))) == "not-shipped"
    monkeypatch.setenv("TRITON_ALWAYS_COMPILE", "1")
    assert refusal(lambda: load(steps(shipped))) == "not-shipped"
    assert shipped.tally == Tally(shipped=2)


def test_never_does_not_take_what_lies_in_a_cache_that_others_may_write(
    compiler: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load(steps(Shipped()))
    assert len(compiler) == 2
    monkeypatch.setenv("RETUNED_COMPILE", "never")
    assert refusal(lambda: load(steps(Shipped()))) == "not-shipped"


def test_a_setting_that_cannot_be_understood_allows_nothing(
    compiler: list[str], sums: tuple[PrecompiledEntry, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETUNED_COMPILE", "nevr")
    assert refusal(lambda: load(steps(Shipped(sums)))) == "setting-invalid"
    assert compiler == []


def test_other_threads_compile_meanwhile_as_ever(
    compiler: list[str], sums: tuple[PrecompiledEntry, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETUNED_COMPILE", "never")
    failed: list[BaseException] = []

    def server() -> None:
        try:
            strangers.affine.device_caches.clear()
            floats = torch.float32
            strangers.affine.warmup(floats, floats, 100, 0.5, BLOCK=16, grid=(1,))
        except BaseException as error:
            failed.append(error)
            raise

    def during() -> Any:
        thread = threading.Thread(target=server)
        thread.start()
        thread.join(200)
        assert not thread.is_alive()
        return stock()

    made = steps(Shipped(sums))
    kernel = made.kernels[0]
    stock: Callable[[], Any] = lambda: kernel._jit.warmup(  # noqa: E731
        *kernel.binding.arguments([7, 64], tensors=[torch.float32] * 3, scratch=torch.float32),
        grid=(1,),
        **kernel._options,
    )
    assert made.kernels[0]._shipped is not None
    assert made.kernels[0]._shipped.compiled(during).name == "parts"
    assert failed == []
    assert compiler == ["affine"]


# --- over the control socket ----------------------------------------------------------------------


def deliver(
    folder: Path, definition: dict[str, Any], entries: tuple[PrecompiledEntry, ...], **fields: Any
) -> tuple[str, str]:
    """Write an artifact as the daemon does; return its digest and folder."""
    from retuned.lab.languages.triton_contract import manifest_of as own
    from retuned.store.artifact_folder import manifest_of

    made = solution(definition, **fields)
    sha256 = hashlib.sha256(SOURCE.encode()).hexdigest()
    body = manifest_of(made, definition, sha256, file_name="kernel.py")
    body |= {"grid": list(made.grid), **own(made)}
    target = folder / made.digest[7:]
    target.mkdir()
    if entries:
        body["precompiled"], data = pack(entries)
        (target / PRECOMPILED_FILE).write_bytes(data)
    (target / "kernel.py").write_text(SOURCE)
    (target / "artifact.json").write_text(json.dumps(body))
    return made.digest, str(target)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> RuntimeHost:
    """A server with one GPU that computes nothing: its self-check only prepares."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())

    def prepared(variant: Any, *_: Any, **__: Any) -> int:
        variant._blocks = None  # scratch needs memory of a device
        variant.prepare((5,))
        return 1

    monkeypatch.setattr(slot_registry, "self_check", prepared)
    host = RuntimeHost("server")
    host.add(Slot(parse_spec(SUMS), original=lambda x: x.sum(1)))
    return host


def prepare(host: RuntimeHost, delivered: tuple[str, str]) -> dict[str, Any]:
    order: dict[str, Any] = {
        "id": "order-1",
        "kind": "swap",
        "definition": "row_sums",
        "artifact": delivered[0],
        "previous": None,
        "guard": {"bounds": {}},
        "epoch": 1,
    }
    return host.answer({"op": "prepare", "order": order, "artifact_dir": delivered[1]})


FIELDS: dict[str, Any] = {"entry": "parts", "params": SPLIT, "steps": STEPS, "scratch": SCRATCH}


def test_prepare_says_what_was_shipped_and_what_was_compiled(
    compiler: list[str], sums: tuple[PrecompiledEntry, ...], served: RuntimeHost, tmp_path: Path
) -> None:
    said = prepare(served, deliver(tmp_path, SUMS, sums, **FIELDS))
    assert compiler == []
    assert (said["shipped"], said["compiled_here"], said["cached"]) == (2, 0, 0)


def test_prepare_without_code_compiles_and_says_so(
    compiler: list[str], served: RuntimeHost, tmp_path: Path
) -> None:
    said = prepare(served, deliver(tmp_path, SUMS, (), **FIELDS))
    assert compiler == ["parts", "total"]
    assert (said["shipped"], said["compiled_here"]) == (0, 2)


def test_prepare_refuses_what_would_be_compiled_where_nothing_may_be(
    compiler: list[str], served: RuntimeHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETUNED_COMPILE", "never")
    delivered = deliver(tmp_path, SUMS, (), **FIELDS)
    assert refusal(lambda: prepare(served, delivered)) == "not-shipped"
    assert compiler == []


def test_prepare_refuses_changed_code_before_anything_is_loaded(
    compiler: list[str], sums: tuple[PrecompiledEntry, ...], served: RuntimeHost, tmp_path: Path
) -> None:
    delivered = deliver(tmp_path, SUMS, sums, **FIELDS)
    path = Path(delivered[1]) / PRECOMPILED_FILE
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert refusal(lambda: prepare(served, delivered)) == "entry-digest-differs"
    assert compiler == []


# --- launches of a stranger's kernel --------------------------------------------------------------


def launch(n: int) -> None:
    x = torch.arange(n, dtype=torch.float32)
    strangers.plain_length[(1,)](x, torch.zeros_like(x), n, BLOCK=4096)


def test_another_source_for_a_strangers_kernel_comes_compiled_too(
    hook: Interceptor,
    compiler: list[str],
    copied: tuple[PrecompiledEntry, ...],
    device: Any,
    tmp_path: Path,
) -> None:
    strangers.plain_length.device_caches.clear()
    launch(100)
    del compiler[:]
    world = World(hook, tmp_path)
    body, data = pack(copied)
    delivered = world.artifact(
        "plain_length",
        definition=COPY,
        source=SOURCE,
        entry="copied",
        params={"TILE": 64},
        grid=["cdiv(n, TILE)"],
        precompiled=body,
        intercept={
            "code": "artifact",
            "axes": {"n": "n"},
            "constexprs": {"BLOCK": 4096},
            "bind": {"x": "x_ptr", "out": "y_ptr"},
        },
    )
    (Path(delivered[1]) / PRECOMPILED_FILE).write_bytes(data)
    order = world.order("lifted_copy", delivered[0])
    said = world.host.answer({"op": "prepare", "order": order, "artifact_dir": delivered[1]})
    assert (said["shipped"], said["compiled_here"]) == (1, 0)
    world.host.answer({"op": "commit", "order": order})
    for n in (100, 1, 16, 333, 333):  # lengths that nobody has launched before the swap among them
        launch(n)
    assert compiler == []
    assert world.sample()["swapped_launches"] == 5
    assert device.launches[-1]["name"] == "copied"


SCALED = '''"""The lab's launch has the number in it; the server's is handed the launch's own."""

import triton
import triton.language as tl


@triton.jit
def scale(x, out, n, factor, TILE: tl.constexpr):
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    tl.store(out + at, tl.load(x + at, mask=at < n) * factor, mask=at < n)


@triton.jit
def fitted(x_ptr, y_ptr, TILE: tl.constexpr):
    scale(x_ptr, y_ptr, 100, tl.full((), 0.25, tl.float32), TILE)


@triton.jit
def serves(x_ptr, y_ptr, factor, TILE: tl.constexpr):
    scale(x_ptr, y_ptr, 100, tl.full((), factor, tl.float32), TILE)


@triton.jit
def any_length(x_ptr, y_ptr, n, factor, TILE: tl.constexpr):
    scale(x_ptr, y_ptr, n, tl.full((), factor, tl.float32), TILE)
'''
HUNDRED: dict[str, Any] = {
    "name": "lifted_scale",
    "op_type": "lifted",
    "axes": {"M": {"type": "var"}},
    "inputs": {"x_ptr": {"shape": ["M"], "dtype": "float32"}},
    "outputs": {"y_ptr": {"shape": ["M"], "dtype": "float32"}},
    "reference": "def run(x_ptr):\n    return x_ptr / 4\n",
}
RULE: dict[str, Any] = {
    "code": "artifact",
    "axes": {"M": "n"},
    "constexprs": {"BLOCK": 16},
    "dtypes": {"x_ptr": "float32", "y_ptr": "float32"},
    "stores": {"y_ptr": "write"},
    "ints": {"n": "M"},
}


def scaled(tmp_path: Path, entry: str) -> Sequence[PrecompiledEntry]:
    """What the lab ships of it, with the function that a server launches."""
    made = solution(
        HUNDRED,
        entry="fitted",
        params={"TILE": 64, "num_warps": 2},
        grid=["2"],
        sources=[{"path": "kernel.py", "content": SCALED}],
    )
    return Precompiler(tmp_path / "lab", arch="sm_90").entries_for(
        made,
        Definition.model_validate(HUNDRED),
        manifest={"intercept": RULE, "entry": entry},
    )


def test_a_source_that_is_handed_a_launchs_real_numbers_comes_compiled_too(
    hook: Interceptor,
    compiler: list[str],
    device: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    strangers.affine.device_caches.clear()
    strangers.launch_affine(100, factor=0.5)
    entries = scaled(tmp_path, "serves")
    assert [each.entry for each in entries] == ["serves"]
    monkeypatch.setenv("RETUNED_COMPILE", "never")
    del compiler[:]
    world = World(hook, tmp_path)
    body, data = pack(tuple(entries))
    delivered = world.artifact(
        "affine",
        definition=HUNDRED,
        source=SCALED,
        entry="serves",
        params={"TILE": 64, "num_warps": 2},
        grid=["2"],
        precompiled=body,
        intercept=RULE,
    )
    (Path(delivered[1]) / PRECOMPILED_FILE).write_bytes(data)
    order = world.order("lifted_scale", delivered[0])
    said = world.host.answer({"op": "prepare", "order": order, "artifact_dir": delivered[1]})
    assert (said["shipped"], said["compiled_here"]) == (1, 0)
    world.host.answer({"op": "commit", "order": order})
    for factor in (0.5, 0.25, 1.0, 16.0):  # whatever the number is, the code is the same
        strangers.launch_affine(100, factor=factor)
    assert compiler == []
    assert world.sample()["swapped_launches"] == 4
    assert device.launches[-1]["name"] == "serves"


def test_where_a_whole_number_is_handed_on_its_server_compiles(
    interpreted: bool, tmp_path: Path
) -> None:
    if interpreted:
        pytest.skip("the interpreter compiles nothing")
    assert scaled(tmp_path, "any_length") == ()
