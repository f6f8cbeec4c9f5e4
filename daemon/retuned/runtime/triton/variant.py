"""A loaded Triton variant: launched on the current stream, compiled before it is ever asked for.

It belongs to the device that was current when it was loaded; tensors on another one are the
incumbent's. What is compiled depends on the lengths of constexpr axes alone (see
`retuned.runtime.triton.launch`): a variant without such axes is compiled once and for all; with
them, a launch that needs code which is not there yet goes to the incumbent, and the control thread
compiles. The same holds for scratch: it is made beforehand, and a launch never allocates it.

A kernel that cannot be launched raises, and the incumbent serves. A kernel that reads or writes
memory that is not its own breaks the whole process' CUDA context: nothing here can undo that, which
is why no variant reaches a server that the lab's memory checks have not passed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from retuned.runtime.artifacts.artifact import Artifact
from retuned.runtime.artifacts.loaded import NOT_COMPILED, Runner, poison
from retuned.runtime.core.active_order import Ineligible
from retuned.runtime.native.device_variant import DeviceVariant
from retuned.runtime.native.memory import Blocks, Lane
from retuned.runtime.native.weights import PackedWeights
from retuned.runtime.schema import Key, Refused, Tensor
from retuned.runtime.triton.launch import Launch, TritonSteps
from retuned.runtime.triton.precompiled import NOT_SHIPPED, Shipped

log = logging.getLogger(__name__)

MAX_PENDING = 64
"""Lengths queued for compiling; what does not fit is queued again by a later launch."""
MAX_CODES = 64
"""Specialisations compiled for one variant; launches that need more stay the incumbent's."""
_PIECE_ALIGN = 256
_NO_SCRATCH = Ineligible("no-scratch")


class TritonVariant(DeviceVariant):
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
        ``contract-violated``, ``grid-invalid`` or ``scratch-invalid``.
    """

    def __init__(self, artifact: Artifact, packed: PackedWeights) -> None:
        super().__init__(artifact, packed)
        spec = artifact.spec
        try:
            source = artifact.binary.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Refused("contract-violated", detail="the source is not UTF-8") from error
        self.shipped = Shipped(artifact.precompiled)
        self._kernel = TritonSteps(
            source,
            entry=artifact.entry,
            params=artifact.params,
            grid=artifact.grid,
            tensors=[tensor.name for tensor in (*spec.inputs, *spec.outputs)],
            axes=[name for name, _ in spec.axes],
            scratch_bytes=artifact.scratch_bytes,
            steps=artifact.steps,
            scratch=artifact.scratch,
            shipped=self.shipped,
        )
        self._names = [tensor.dtype for tensor in (*spec.inputs, *spec.outputs)]
        interpreted = self._kernel.interpreted
        self._device = self._torch.device("cpu") if interpreted else self._find_gpu("Triton")
        self._blocks = Blocks(self._torch, self._device) if self._kernel.plan.scratch else None
        self._pending: dict[tuple[int, ...], None] = {}
        self._codes: set[tuple[int, ...]] = set()
        self._failed: set[tuple[int, ...]] = set()

    @property
    def steps(self) -> TritonSteps:
        return self._kernel

    def capturing(self) -> Callable[[], bool] | None:
        """Return whether the current stream is being captured; never under the interpreter."""
        if self._kernel.interpreted:
            return None
        return super().capturing()

    def prepare(self, key: Key) -> None:
        """Compile and load what launches of these lengths need, and make their scratch.

        Raises
        ------
        Refused
            ``compile-failed``, ``out-of-resources``, ``grid-invalid``, ``scratch-too-large`` or
            ``scratch-memory``.
        """
        self._prepare(tuple(self.spec.lengths(key).values()))

    def prepare_shipped(self) -> int:
        """Load all code that came along for this device; return for how many lengths.

        So launches of lengths that nobody has asked for yet find their code too.

        Raises
        ------
        Refused
            As `prepare`.
        """
        if self._kernel.interpreted or not self.shipped.entries:
            return 0
        axes, loaded = len(self.spec.axes), 0
        with self._torch.cuda.device(self._device):
            here = self.shipped.for_here()
        for values in sorted({each.lengths for each in here if len(each.lengths) == axes}):
            try:
                with self.shipped.alone():
                    self._prepare(values)
            except Refused as error:
                if error.reason != NOT_SHIPPED:
                    raise
                break  # of another backend: whatever a launch needs is compiled when it asks
            loaded += 1
        return loaded

    def counts(self) -> dict[str, int]:
        """Return where its code came from."""
        return self.shipped.tally.as_json()

    @property
    def pending(self) -> int:
        """Compilations that launches asked for in vain."""
        return len(self._pending)

    def prepare_pending(self) -> int:
        """Compile one of what launches asked for in vain; return how many were compiled.

        One: whoever calls this also answers the daemon, whose rollback must not wait for more.
        """
        values = next(iter(list(self._pending)), None)
        if values is None:
            return self._prepare_blocks()
        made = 0
        try:
            self._prepare(values)
            made = 1
        except Refused as error:
            self._failed.add(self._kernel.plan.specialisation(values))
            log.warning("%s at %s stays the incumbent's: %s", self.spec.name, values, error)
        self._pending.pop(values, None)
        return made

    def _prepare(self, values: tuple[int, ...]) -> None:
        self._kernel.prepare(values, dtypes=self._names, device=self._device)
        if self._blocks is not None:
            self._blocks.reserve(self._layout(values)[1])
        self._codes.add(self._kernel.plan.specialisation(values))

    def _prepare_blocks(self) -> int:
        """Make the scratch that a launch asked for in vain."""
        try:
            return 0 if self._blocks is None else self._blocks.serve()
        except Refused as error:
            log.warning("%s: a stream stays the incumbent's: %s", self.spec.name, error)
            return 0

    def runner(self, values: tuple[int, ...]) -> Runner:
        """Return what launches at these lengths, at once or as soon as its code is there."""
        return self._runner(values, poisoned=False)

    def checked_runner(self, values: tuple[int, ...]) -> Runner:
        """Return the same, with scratch poisoned beforehand."""
        return self._runner(values, poisoned=True)

    def _runner(self, values: tuple[int, ...], *, poisoned: bool) -> Runner:
        try:
            ready = self._ready(values)
            spaces = None if self._blocks is None else self._layout(values)
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

        def run_in_scratch(tensors: Sequence[Tensor]) -> Ineligible | None:
            nonlocal ready
            if ready is None:
                ready = self._ready(values)
                if ready is None:
                    return NOT_COMPILED
            assert self._blocks is not None, "chosen below"
            assert spaces is not None, "chosen below"
            lane = self._blocks.take(self._stream(), spaces[1])
            if lane is None:
                return _NO_SCRATCH
            try:
                pieces = lane.views.get(values) or self._views(lane, values, spaces[0])
                if poisoned:
                    for piece in pieces:
                        poison(piece)
                ready([*tensors, *pieces])
            finally:
                lane.lock.release()
            return None

        return run if spaces is None else run_in_scratch

    def hindrance(self, values: tuple[int, ...]) -> Ineligible | None:
        """Return why nothing can be launched at these lengths now; missing code is asked for."""
        try:
            return NOT_COMPILED if self._ready(values) is None else None
        except Refused as error:  # as in `_runner`
            return Ineligible(error.reason)

    def _layout(self, values: tuple[int, ...]) -> tuple[list[tuple[int, int]], int]:
        """Return start and end of each piece of scratch in a block, and the bytes of all."""
        spans, end = [], 0
        for size in self._kernel.plan.sizes_at(values):
            start = -(-end // _PIECE_ALIGN) * _PIECE_ALIGN
            end = start + size
            spans.append((start, end))
        return spans, end

    def _views(
        self, lane: Lane, values: tuple[int, ...], spans: Sequence[tuple[int, int]]
    ) -> list[Tensor]:
        """Return the pieces of a lane's block; kept, since making views costs microseconds."""
        assert lane.block is not None, "a lane that was taken has one"
        if len(lane.views) >= MAX_PENDING:
            lane.views.clear()
        lane.views[values] = [
            lane.block[start:end].view(getattr(self._torch, each.dtype))
            for (start, end), each in zip(spans, self._kernel.plan.scratch, strict=True)
        ]
        pieces: list[Tensor] = lane.views[values]
        return pieces

    def _stream(self) -> int:
        """Return the calling thread's current stream; 0 without a GPU."""
        if self._kernel.interpreted:
            return 0
        return int(self._torch.cuda.current_stream(self._device).cuda_stream)

    def _ready(self, values: tuple[int, ...]) -> Launch | None:
        if self._kernel.is_prepared(values, device=self._device):
            return self._kernel.at(values, device=self._device)
        code = self._kernel.plan.specialisation(values)
        self._kernel.plan.check_at(values)
        wanted = len(self._codes) < MAX_CODES and code not in self._failed
        if wanted and len(self._pending) < MAX_PENDING:
            self._pending[values] = None
        return None
