# mypy: disable-error-code="untyped-decorator"
"""Autotuners of several Tritons over a kernel that tells with which configuration it ran."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
import triton
import triton.language as tl
from tests.servers.sources import file_of
from tests.servers.wheels import Wheel, unpacked

MODULE = "triton.runtime.autotuner"


@contextmanager
def autotuner(wheel: Wheel, tree: ast.Module | None = None) -> Iterator[ModuleType]:
    """Run a version's autotuner, or a changed one, with all else of the installed Triton."""
    name = f"triton.runtime.autotuner_of_{wheel.version.replace('.', '_')}"
    spec = importlib.util.spec_from_file_location(name, file_of(unpacked(wheel), MODULE))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        if tree is None:
            spec.loader.exec_module(module)
        else:
            exec(compile(tree, str(spec.origin), "exec"), vars(module))
        yield module
    finally:
        del sys.modules[name]


@triton.jit
def _blocks(x_ptr: Any, seen_ptr: Any, n: Any, wide: Any, BLOCK: tl.constexpr) -> None:
    """Write to each element the size of the block that wrote it."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(seen_ptr + at, tl.load(x_ptr + at, mask=at < n) * 0 + BLOCK, mask=at < n)


def tuned(module: ModuleType, *sizes: int) -> Any:
    configs = [module.Config({"BLOCK": size}, num_warps=2, num_stages=1) for size in sizes]
    return module.Autotuner(_blocks, _blocks.arg_names, configs, ["n", "wide"], None, None)


def launched(tuner: Any) -> float:
    """Launch, and return the size of the blocks that ran."""
    x, seen = torch.zeros(8), torch.zeros(8, dtype=torch.float64)
    tuner[lambda meta: (triton.cdiv(8, meta["BLOCK"]),)](x, seen, 8, wide=3)
    return float(seen[0])


KEY = (8, 3, "torch.float32", "torch.float64")


def kept(helpers: ModuleType, tuner: Any) -> float:
    x, seen = torch.zeros(8), torch.zeros(8, dtype=torch.float64)
    grid = lambda meta: (triton.cdiv(8, meta["BLOCK"]),)  # noqa: E731
    helpers.launch_autotuned(tuner, grid, x_ptr=x, seen_ptr=seen, n=8, wide=3)
    return float(seen[0])
