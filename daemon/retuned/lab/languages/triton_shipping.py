"""Compiles what a server will load of a Triton variant, in the compiler's limited process.

Code is found again by the key that Triton gives a compilation, and that holds what its own binder
makes of the arguments. So nothing of the binder is imitated: the variant is loaded by the runtime's
own code and compiled by the call that a server prepares it with, on a driver that names the target
and launches nothing.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PATHS = "extern_libs"
"""Field of Triton's metadata that names files of this machine; no launcher reads it."""
_KINDS = ("cubin", "hsaco")


def compile_entries(task: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Compile every step of a variant at all lengths of a task; return keys, codes and figures."""
    import triton
    from triton.backends.compiler import GPUTarget

    target = GPUTarget(*task["target"])
    triton.runtime.driver.set_active(_driver(target))
    made = _served(task) if "served" in task else _steps(task)
    version = str(triton.__version__)
    return [
        each | {"triton": version, **_compiled_entry(code, lanes=target.warp_size)}
        for each, code in made
    ]


def _steps(task: Mapping[str, Any]) -> list[tuple[dict[str, Any], Any]]:
    """Compile every step at all lengths, as a server does for an operator's slot."""
    from retuned.runtime.triton_steps import TritonSteps

    steps = TritonSteps(
        task["source"],
        entry=task["entry"],
        params=task["params"],
        grid=task["grid"],
        tensors=[name for name, _ in task["tensors"]],
        axes=task["axes"],
        scratch_bytes=task["scratch_bytes"],
        steps=task.get("steps", ()),
        scratch=task.get("scratch", ()),
    )
    dtypes = [dtype for _, dtype in task["tensors"]]
    return [
        ({"lengths": list(lengths), "entry": step.entry}, compiled)
        for lengths in task["lengths"]
        for step, compiled in zip(
            steps.plan.steps, steps.compile_at(lengths, dtypes=dtypes), strict=True
        )
    ]


def _served(task: Mapping[str, Any]) -> list[tuple[dict[str, Any], Any]]:
    """Compile what takes over launches of a server's kernel, as the server does for them."""
    import torch

    from retuned.runtime.intercept.codes import compiled_source
    from retuned.runtime.triton_bind import LAUNCH_OPTIONS
    from retuned.runtime.triton_import import import_source, unspecialised
    from retuned.runtime.triton_source import check_source

    entry, arguments = task["served"]["entry"], task["served"]["arguments"]
    check_source(task["source"], entry=entry)
    module, _ = import_source(task["source"])
    args = [value if how == "fixed" else _like(torch, value) for _, how, value in arguments]
    free = [name for name, how, value in arguments if how == "handed" and value == "float"]
    options = {name: value for name, value in task["params"].items() if name in LAUNCH_OPTIONS}
    compiled = compiled_source(unspecialised(getattr(module, entry), free), args, options)
    return [({"lengths": [], "entry": entry}, compiled)]


def _like(torch: Any, kind: str) -> Any:  # noqa: ANN401 - the module; an element type or a number
    return 0.5 if kind == "float" else getattr(torch, kind)


def _compiled_entry(compiled: Any, *, lanes: int) -> dict[str, Any]:  # noqa: ANN401 - CompiledKernel
    from retuned.lab.languages.triton_build import figures

    files = {Path(name).suffix[1:]: Path(path) for name, path in compiled.metadata_group.items()}
    (kind,) = (name for name in _KINDS if name in files)
    meta = json.loads(files["json"].read_text("utf-8"))
    if _PATHS in meta:
        meta[_PATHS] = []
    found = figures(compiled, lanes)
    if base64.b64decode(found["object"]) != files[kind].read_bytes():
        raise ValueError("what Triton keeps is not what it would load")
    return {**found, "key": str(compiled.hash), "kind": kind, "meta": meta}


def _driver(target: Any) -> Any:  # noqa: ANN401 - of Triton's interface, whatever the version asks
    from triton.backends.driver import DriverBase

    class Compiling(DriverBase):  # type: ignore[misc]
        """A device that is only compiled for."""

        def __init__(self) -> None:
            self.utils = self

        @classmethod
        def is_active(cls) -> bool:
            return True

        def map_python_to_cpp_type(self, ty: str) -> str:
            return ty

        def get_current_target(self) -> Any:  # noqa: ANN401 - GPUTarget
            return target

        def get_active_torch_device(self) -> Any:  # noqa: ANN401 - none is here
            return None

        def get_benchmarker(self) -> Any:  # noqa: ANN401 - nothing is launched
            raise NotImplementedError

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            del device
            return 0

    return Compiling()
