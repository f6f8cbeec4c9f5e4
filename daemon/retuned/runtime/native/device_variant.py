"""Device variants: device, tensors and outputs of variants that belong to one device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from retuned.runtime.artifacts.loaded import Allocate, LoadedVariant
from retuned.runtime.native.gpu_launch import ALIGN
from retuned.runtime.schema import Refused, Tensor


class DeviceVariant(LoadedVariant):
    """A variant that belongs to one device; the incumbent serves tensors on another one.

    A subclass sets `_device`, by `_find_gpu` if it needs a GPU.
    """

    _device: Any

    @property
    def device(self) -> Any:  # noqa: ANN401 - torch.device
        return self._device

    def is_here(self) -> Callable[[Tensor], bool]:
        """Return whether a tensor is on the device and aligned as compiled code assumes."""
        index = -1 if self._device.index is None else self._device.index

        def here(value: Tensor) -> bool:
            return bool(value.get_device() == index and value.data_ptr() % ALIGN == 0)

        return here

    def capturing(self) -> Callable[[], bool] | None:
        capturing: Callable[[], bool] = self._torch.cuda.is_current_stream_capturing
        return capturing

    def allocate(self) -> Allocate:
        return partial(self._torch.empty, device=self._device)

    def _find_gpu(self, kind: str) -> Any:  # noqa: ANN401 - torch.device
        """Return the only GPU, or that of the slot's weights.

        This thread's current device need not be the one that the server's threads have chosen.

        Raises
        ------
        Refused
            ``gpu-missing`` or ``device-unknown``.
        """
        cuda = self._torch.cuda
        if not cuda.is_available():
            raise Refused(
                "gpu-missing", detail=f"a {kind} variant needs a GPU; the server has none"
            )
        if cuda.device_count() == 1:
            return self._torch.device("cuda", 0)
        seen = {weight.device for weight in self.packed.served() if weight.is_cuda}
        if len(seen) != 1:
            detail = f"weights on {sorted(map(str, seen)) or 'no GPU yet'}; one is needed"
            raise Refused("device-unknown", detail=detail)
        return seen.pop()
