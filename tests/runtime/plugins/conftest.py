"""A server's operators, registered as the real ones are, and C++ variants of them."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from retuned import catalog
from retuned.runtime.core.attach import Runtime, attach
from retuned.runtime.plugins.operators_table import SGL_KERNEL, SGLANG, VLLM
from retuned.runtime.torch_ops.binding import Binding

EPSILON = 1e-6
SOURCE = r"""
#include <cmath>
#include <cstdint>
#ifndef FAULT
#define FAULT 0
#endif
#define ENTRY(NAME) extern "C" void NAME(void* const* t, const int64_t* a, void*, int64_t, int64_t)
static void normalise(const float* x, const float* w, float* y, int64_t width) {
  double sum = 0;
  for (int64_t h = 0; h < width; h++) sum += (double)x[h] * x[h];
  double scale = 1 / std::sqrt(sum / width + 1e-6);
#if FAULT == 1
  scale *= 1.5;
#endif
  for (int64_t h = 0; h < width; h++) y[h] = (float)(x[h] * scale * w[h]);
}
ENTRY(rmsnorm) {
  for (int64_t m = 0; m < a[0]; m++)
    normalise((float*)t[0] + m * a[1], (float*)t[1], (float*)t[2] + m * a[1], a[1]);
}
ENTRY(add_rmsnorm) {
  float *x = (float*)t[0], *r = (float*)t[1], *y = (float*)t[3], *s = (float*)t[4];
  for (int64_t i = 0; i < a[0] * a[1]; i++) y[i] = NAN; /* wrong where an output is an input */
  for (int64_t i = 0; i < a[0] * a[1]; i++) s[i] = x[i] + r[i];
  for (int64_t m = 0; m < a[0]; m++)
    normalise(s + m * a[1], (float*)t[2], y + m * a[1], a[1]);
}
ENTRY(silu_mul) {
  float *x = (float*)t[0], *y = (float*)t[1];
  int64_t half = a[1], whole = a[2];
  for (int64_t m = 0; m < a[0]; m++)
    for (int64_t i = 0; i < half; i++) {
      float gate = x[m * whole + i];
      y[m * half + i] = gate / (1 + std::exp(-gate)) * x[m * whole + half + i];
    }
}
ENTRY(rope) {
  int64_t rows = a[0], width = a[4], half = width / 2;
  int64_t* positions = (int64_t*)t[0];
  for (int side = 0; side < 2; side++) {
    int64_t heads = a[2 + side];
    float *in = (float*)t[1 + side], *out = (float*)t[4 + side];
    for (int64_t m = 0; m < rows; m++)
      for (int64_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < half; i++) {
          float *table = (float*)t[3] + positions[m] * width, *p = in + (m * heads + h) * width;
          float c = table[i], s = table[half + i], *q = out + (m * heads + h) * width;
          q[i] = p[i] * c - p[half + i] * s;
          q[half + i] = p[half + i] * c + p[i] * s;
        }
  }
}
"""


def _norm(out: Any, x: Any, weight: Any, epsilon: float, *_: object) -> None:
    gain = None if weight is None else weight.to(x.dtype)
    out.copy_(torch.nn.functional.rms_norm(x, x.shape[-1:], gain, epsilon))


def _added_norm(x: Any, residual: Any, weight: Any, epsilon: float, *_: object) -> None:
    residual.add_(x)
    x.copy_(torch.nn.functional.rms_norm(residual, x.shape[-1:], weight, epsilon))


def _silu(out: Any, x: Any) -> None:
    half = x.shape[-1] // 2
    out.copy_(torch.nn.functional.silu(x[..., :half]) * x[..., half:])


def _named_silu(op_name: str, x: Any, out: Any) -> None:
    assert op_name == "silu", "the test knows no other"
    _silu(out, x)


def _gelu(out: Any, x: Any) -> None:
    half = x.shape[-1] // 2
    out.copy_(torch.nn.functional.gelu(x[..., :half], approximate="tanh") * x[..., half:])


def _rope(
    positions: Any, query: Any, key: Any, head_size: int, cache: Any, is_neox: bool,
    rope_dim_offset: int = 0, inverse: bool = False,
) -> None:  # fmt: skip
    cosine, sine = cache[positions][:, None, :].chunk(2, dim=-1)
    for value in (query, key):
        if value is not None:
            heads = value.view(value.shape[0], -1, head_size)
            low, high = (half.clone() for half in heads.chunk(2, dim=-1))
            heads.copy_(torch.cat([low * cosine - high * sine, high * cosine + low * sine], -1))


STOCK: dict[str, Callable[..., None]] = {
    "_C::rms_norm": _norm,
    "_C::fused_add_rms_norm": _added_norm,
    "_C::silu_and_mul": _silu,
    "_C::gelu_tanh_and_mul": _gelu,
    "_C::rotary_embedding": _rope,
    "sgl_kernel::rmsnorm": _norm,
    "sgl_kernel::fused_add_rmsnorm": _added_norm,
    "sgl_kernel::silu_and_mul": _silu,
    "sgl_kernel::gelu_tanh_and_mul": _gelu,
    "sgl_kernel::rotary_embedding": _rope,
    "sglang::_run_activation_inplace": _named_silu,
}
"""What the operators of the real servers do, by name."""


class Server:
    """A process whose operators are a server's, with Retuned joined."""

    def __init__(self, folder: Path, binary: Callable[[int], bytes]) -> None:
        self.calls: dict[str, int] = dict.fromkeys(STOCK, 0)
        self.runtime: Runtime = attach(server="test")
        self._folder = folder
        self._binary = binary
        self._epoch = 0
        self._libraries: list[Any] = []

    def register(self, *bindings: Binding, schema: str = "") -> None:
        """Register operators as the server's own library does, with a shape function."""
        for binding in bindings:
            namespace, _, name = binding.operator.partition("::")
            library = torch.library.Library(namespace, "FRAGMENT")
            self._libraries.append(library)
            library.define(schema or binding.schema.partition("::")[2])
            library.impl(name, self._counted(binding.operator), "CPU")
            library.impl(name, lambda *_: None, "Meta")

    def _counted(self, operator: str) -> Callable[..., None]:
        def kernel(*args: Any) -> None:
            self.calls[operator] += 1
            STOCK[operator](*args)

        return kernel

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        return self.runtime._host.answer({"op": op, **fields})

    def sample(self, definition: str) -> dict[str, Any]:
        samples = self.ask("samples")["samples"]
        return dict(next(each for each in samples if each["definition"] == definition))

    def told(self, operator: str, key: str = "CPU") -> dict[str, Any]:
        said = self.ask("hello")["operators"]
        return dict(next(e for e in said if (e["operator"], e["key"]) == (operator, key)))

    def artifact(self, definition: str, *, fault: int = 0) -> tuple[str, Path]:
        """Return digest and folder of a variant, as the lab delivers it."""
        entry = catalog.get(definition).definition
        binary = self._binary(fault)
        digest = "sha256:" + hashlib.sha256(f"{definition} {fault}".encode()).hexdigest()
        folder = self._folder / digest[7:]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "kernel.so").write_bytes(binary)
        manifest = {
            "digest": digest,
            "definition": entry.model_dump(mode="json"),
            "language": "cpu_cpp",
            "entry": entry.op_type,
            "binary": "kernel.so",
            "binary_sha256": hashlib.sha256(binary).hexdigest(),
        }
        (folder / "artifact.json").write_text(json.dumps(manifest))
        return digest, folder

    def order(self, definition: str, digest: str | None, **fields: Any) -> dict[str, Any]:
        self._epoch += 1
        return {
            "id": f"order-{self._epoch}",
            "kind": "swap" if digest else "rollback",
            "proposal": "proposal",
            "target": "server",
            "definition": definition,
            "artifact": digest,
            "previous": None,
            "guard": {"bounds": {}},
            "epoch": self._epoch,
            "shadow_every": 10**9,
            "shadow_tolerance": 1e-3,
        } | fields

    def swap(self, definition: str, *, fault: int = 0, prepare: bool = True, **fields: Any) -> None:
        digest, folder = self.artifact(definition, fault=fault)
        order = self.order(definition, digest, **fields)
        if prepare:
            self.ask("prepare", order=order, artifact_dir=str(folder))
        self.ask("commit", order=order)

    def roll_back(self, definition: str) -> None:
        self.ask("commit", order=self.order(definition, None))

    def close(self) -> None:
        self.runtime.close()
        for library in self._libraries:
            library._destroy()


@pytest.fixture(scope="session")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], bytes]:
    """Compile all variants, right or wrong, each once."""
    folder = tmp_path_factory.mktemp("operators")
    (folder / "variants.cpp").write_text(SOURCE)

    def compiled(fault: int) -> bytes:
        target = folder / f"variants-{fault}.so"
        if not target.exists():
            flags = ["-O1", "-shared", "-fPIC", f"-DFAULT={fault}"]
            source = str(folder / "variants.cpp")
            subprocess.run(["g++", *flags, "-o", str(target), source], check=True)
        return target.read_bytes()

    return compiled


@pytest.fixture
def server(tmp_path: Path, binary: Callable[[int], bytes]) -> Iterator[Server]:
    made = Server(tmp_path / "artifacts", binary)
    yield made
    made.close()


@pytest.fixture(scope="session")
def bindings() -> dict[str, Binding]:
    return {binding.operator: binding for binding in (*VLLM, *SGL_KERNEL, *SGLANG)}


@pytest.fixture(scope="session")
def stock() -> dict[str, Callable[..., None]]:
    return STOCK
