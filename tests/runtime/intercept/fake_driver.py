"""A device that launches nothing and remembers what it was asked; Triton compiles for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase


class FakeDriver(DriverBase):  # type: ignore[misc]
    """Stands for an NVIDIA device, for every version of Triton's driver interface."""

    def __init__(self) -> None:
        self.launches: list[dict[str, Any]] = []
        self.launcher_cls = self._launcher
        self.utils = self

    def _launcher(self, src: Any, metadata: Any) -> Callable[..., None]:
        def launch(*args: Any) -> None:
            enter, leave = args[-2 - len(src.fn.params)], args[-1 - len(src.fn.params)]
            told = args[-3 - len(src.fn.params)]
            for hook in (enter, leave):
                if hook is not None:
                    hook(told)
            self.launches.append(
                {
                    "name": metadata.name,
                    "grid": args[:3],
                    "num_warps": metadata.num_warps,
                    "args": args[-len(src.fn.params) :],
                }
            )

        return launch

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> Any:
        return None

    def get_benchmarker(self) -> Any:
        def bench(kernel_call: Callable[[], None], quantiles: Any) -> list[float]:
            kernel_call()
            return [float(len(self.launches))] * 3  # the first is the fastest

        return bench

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def load_binary(self, *_: Any) -> tuple[int, int, int, int, int]:
        return 1, 2, 32, 0, 1024

    def unload_module(self, module: int) -> None:
        pass

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 232448}
