"""A loaded Triton variant: launched on the current stream, compiled before it is ever asked for.

It belongs to the device that was current when it was loaded; tensors on another one are the
incumbent's. What is compiled depends on the lengths of constexpr axes alone (see
`retuned.runtime.triton_launch`): a variant without such axes is compiled once and for all; with
them, a launch that needs code which is not there yet goes to the incumbent, and the control thread
compiles.

A kernel that cannot be launched raises, and the incumbent serves. A kernel that reads or writes
memory that is not its own breaks the whole process' CUDA context: nothing here can undo that, which
is why no variant reaches a server that the lab's memory checks have not passed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from retuned.runtime.artifact import Artifact
from retuned.runtime.inforce import Ineligible
from retuned.runtime.loaded import NOT_COMPILED, Allocate, LoadedVariant, Runner
from retuned.runtime.spec import Key, Refused, Tensor
from retuned.runtime.triton_launch import Launch, TritonKernel
from retuned.runtime.weights import PackedWeights

log = logging.getLogger(__name__)

MAX_PENDING = 64
"""Lengths queued for compiling; what does not fit is queued again by a later launch."""
MAX_CODES = 64
"""Specialisations compiled for one variant; launches that need more stay the incumbent's."""
_ALIGN = 16


class TritonVariant(LoadedVariant):
    """One artifact in language ``triton``: its binary is the text of the source.

    Parameters
    ----------
    artifact
        Verified.
    packed
        The slot's packed weights.

    Raises
    ------
    Refused
        ``torch-missing``, ``triton-missing``, ``gpu-missing``, ``dtype-unsupported``,
        ``contract-violated`` or ``grid-invalid``.
    """

    def __init__(self, artifact: Artifact, packed: PackedWeights) -> None:
        super().__init__(artifact, packed)
        spec = artifact.spec
        try:
            source = artifact.binary.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Refused("contract-violated", detail="the source is not UTF-8") from error
        self._kernel = TritonKernel(
            source,
            entry=artifact.entry,
            params=artifact.params,
            grid=artifact.grid,
            tensors=[tensor.name for tensor in (*spec.inputs, *spec.outputs)],
            axes=[name for name, _ in spec.axes],
            scratch_bytes=artifact.scratch_bytes,
        )
        self._names = [tensor.dtype for tensor in (*spec.inputs, *spec.outputs)]
        self._device = self._find_device()
        self._pending: dict[tuple[int, ...], None] = {}
        self._codes: set[tuple[int, ...]] = set()
        self._failed: set[tuple[int, ...]] = set()

    @property
    def device(self) -> Any:  # noqa: ANN401 - torch.device
        """The GPU; the CPU under Triton's interpreter."""
        return self._device

    def is_here(self) -> Callable[[Tensor], bool]:
        """Return whether a tensor is on the device and aligned as compiled code assumes."""
        index = -1 if self._device.index is None else self._device.index

        def here(value: Tensor) -> bool:
            return bool(value.get_device() == index and value.data_ptr() % _ALIGN == 0)

        return here

    def capturing(self) -> Callable[[], bool] | None:
        """Return whether the current stream is being captured; never under the interpreter."""
        if self._kernel.interpreted:
            return None
        capturing: Callable[[], bool] = self._torch.cuda.is_current_stream_capturing
        return capturing

    def allocate(self) -> Allocate:
        """Return what allocates an output."""
        return partial(self._torch.empty, device=self._device)

    def prepare(self, key: Key) -> None:
        """Compile and load what launches of these lengths need.

        Raises
        ------
        Refused
            ``compile-failed``, ``out-of-resources`` or ``grid-invalid``.
        """
        values = tuple(self.spec.lengths(key).values())
        self._kernel.prepare(values, dtypes=self._names, device=self._device)
        self._codes.add(self._kernel.binding.specialisation(values))

    def prepare_pending(self) -> int:
        """Compile one of what launches asked for in vain; return how many were compiled.

        One: whoever calls this also answers the daemon, whose rollback must not wait for more.
        """
        values = next(iter(list(self._pending)), None)
        if values is None:
            return 0
        made = 0
        try:
            self._kernel.prepare(values, dtypes=self._names, device=self._device)
            self._codes.add(self._kernel.binding.specialisation(values))
            made = 1
        except Refused as error:
            self._failed.add(self._kernel.binding.specialisation(values))
            log.warning("%s at %s stays the incumbent's: %s", self.spec.name, values, error)
        self._pending.pop(values, None)
        return made

    def runner(self, values: tuple[int, ...]) -> Runner:
        """Return what launches at these lengths, at once or as soon as its code is there."""
        try:
            ready = self._ready(values)
        except Refused as error:  # these lengths can never be launched
            never = Ineligible(error.reason)
            return lambda _: never

        def run(tensors: Sequence[Tensor]) -> Ineligible | None:
            nonlocal ready
            if ready is None:
                ready = self._ready(values)
                if ready is None:
                    return NOT_COMPILED
            ready(tensors)
            return None

        return run

    def _ready(self, values: tuple[int, ...]) -> Launch | None:
        if self._kernel.is_prepared(values, device=self._device):
            return self._kernel.at(values, device=self._device)
        code = self._kernel.binding.specialisation(values)
        self._kernel.binding.grid_at(values)
        wanted = len(self._codes) < MAX_CODES and code not in self._failed
        if wanted and len(self._pending) < MAX_PENDING:
            self._pending[values] = None
        return None

    def _find_device(self) -> Any:  # noqa: ANN401 - torch.device
        """Return the only GPU, or that of the slot's weights.

        This thread's current device says nothing of the one that the server's threads have chosen.
        """
        if self._kernel.interpreted:
            return self._torch.device("cpu")
        cuda = self._torch.cuda
        if not cuda.is_available():
            raise Refused("gpu-missing", detail="a Triton variant needs a GPU, and none is here")
        if cuda.device_count() == 1:
            return self._torch.device("cuda", 0)
        seen = {weight.device for weight in self.packed.served() if weight.is_cuda}
        if len(seen) != 1:
            detail = f"weights on {sorted(map(str, seen)) or 'no GPU yet'}; one is needed"
            raise Refused("device-unknown", detail=detail)
        return seen.pop()
