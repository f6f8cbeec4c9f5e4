"""A small int8 linear in C++, right or wrong on purpose, delivered as the lab would."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

N, K = 16, 32

SOURCE = r"""
#include <cmath>
#include <cstdint>
#ifndef PANEL
#define PANEL 1
#endif
extern "C" void linear(void* const* t, const int64_t* axes, void* scratch, int64_t part,
                       int64_t parts) {
  float* x = (float*)t[0];
  const int8_t* w = (const int8_t*)t[1];
  const float* scale = (const float*)t[2];
  float* y = (float*)t[3];
  const int64_t M = axes[0], N = axes[1], K = axes[2];
  for (int64_t m = 0; m < M; m++)
    for (int64_t n = part; n < N; n += parts) {
      float sum = 0;
      for (int64_t k = 0; k < K; k++)
        sum += x[m * K + k] * w[((n / PANEL) * K + k) * PANEL + n % PANEL];
      if (scratch) { ((float*)scratch)[0] = sum; sum = ((float*)scratch)[0]; }
      y[m * N + n] = sum * scale[n];
    }
#if FAULT == 1 /* one column is too large */
  for (int64_t m = 0; m < M; m++) y[m * N] *= 1.5f;
#elif FAULT == 2
  y[0] = NAN;
#elif FAULT == 3
  y[M * N] = 1.0f;
#elif FAULT == 4
  x[0] += 1.0f;
#endif
}
#if FAULT == 5
extern "C" void lazy(void* const* t, const int64_t* axes, void*, int64_t, int64_t) {
  ((float*)t[3])[0] = 0.0f; /* all else is left as it was */
}
#endif
"""


def linear_definition(name: str = "linear_n16_k32", *, n: int = N, k: int = K) -> dict[str, Any]:
    return {
        "name": name,
        "op_type": "linear_test",
        "axes": {
            "M": {"type": "var"},
            "N": {"type": "const", "value": n},
            "K": {"type": "const", "value": k},
        },
        "inputs": {
            "x": {"shape": ["M", "K"], "dtype": "float32"},
            "wq": {"shape": ["N", "K"], "dtype": "int8", "constant": True},
            "scale": {"shape": ["N"], "dtype": "float32", "constant": True},
        },
        "outputs": {"y": {"shape": ["M", "N"], "dtype": "float32"}},
        "reference": "def run(x, wq, scale): ...",
    }


def linear(x: Any, wq: Any, scale: Any) -> Any:
    """The server's own code."""
    return (x @ wq.to(torch.float32).T) * scale


@dataclass(frozen=True)
class Built:
    """One delivered artifact."""

    folder: Path
    digest: str

    def edit(self, **fields: Any) -> None:
        path = self.folder / "artifact.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))


Build = Callable[..., Built]


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., bytes]:
    """Compile the source with a fault and a panel width, each once."""
    folder = tmp_path_factory.mktemp("compiled")
    (folder / "linear.cpp").write_text(SOURCE)

    def compile(fault: int = 0, panel: int = 1) -> bytes:
        target = folder / f"linear-{fault}-{panel}.so"
        if not target.exists():
            flags = ["-O1", "-shared", "-fPIC", f"-DFAULT={fault}", f"-DPANEL={panel}"]
            subprocess.run(
                ["g++", *flags, "-o", str(target), str(folder / "linear.cpp")], check=True
            )
        return target.read_bytes()

    return compile


@pytest.fixture
def build(tmp_path: Path, compiled: Callable[..., bytes]) -> Build:
    """Make an artifact folder; equal arguments make equal digests."""

    def make(*, fault: int = 0, panel: int = 1, **fields: Any) -> Built:
        binary = compiled(fault, panel)
        definition = fields.pop("definition", linear_definition())
        about = json.dumps([fault, panel, fields, definition], sort_keys=True)
        digest = "sha256:" + hashlib.sha256(about.encode()).hexdigest()
        folder = tmp_path / "artifacts" / digest[7:]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "kernel.so").write_bytes(binary)
        manifest = {
            "digest": digest,
            "definition": definition,
            "language": "cpu_cpp",
            "entry": "lazy" if fault == 5 else "linear",
            "params": {},
            "layouts": {"wq": f"panels-{panel}"} if panel > 1 else {},
            "scratch_bytes": 0,
            "parts": 1,
            "binary": "kernel.so",
            "binary_sha256": hashlib.sha256(binary).hexdigest(),
        }
        (folder / "artifact.json").write_text(json.dumps(manifest | fields))
        return Built(folder, digest)

    return make


def order_body(digest: str | None, *, epoch: int = 1, **fields: Any) -> dict[str, Any]:
    body: dict[str, Any] = {
        "id": f"order-{epoch}",
        "kind": "swap" if digest else "rollback",
        "proposal": "proposal",
        "target": "server",
        "definition": "linear_n16_k32",
        "artifact": digest,
        "previous": None,
        "guard": {"bounds": {}},
        "epoch": epoch,
        "shadow_every": 10**9,  # by chance no check beyond the first of each bucket
        "shadow_tolerance": 1e-3,
    }
    return body | fields


@dataclass
class Weights:
    """Weights and scale of one layer."""

    wq: Any
    scale: Any


@pytest.fixture
def layer() -> Weights:
    generator = torch.Generator().manual_seed(1)
    wq = torch.randint(-127, 128, (N, K), dtype=torch.int8, generator=generator)
    return Weights(wq, torch.rand(N, generator=generator) + 0.5)


@pytest.fixture
def linear_test_kit() -> Any:
    """The functions of this file, for test modules, which cannot import it."""

    class Kit:
        definition = staticmethod(linear_definition)
        order = staticmethod(order_body)
        original = staticmethod(linear)

    return Kit
