"""Variant in Triton: launched on the current stream, compiled before it is used.

It belongs to the device that was current when it was loaded; the incumbent serves tensors on
another device. Compiled code depends only on the lengths of constexpr axes (see
`retuned.runtime.triton.launch`). A variant without such axes is compiled once. With them, the
incumbent serves a launch whose code does not exist yet, and the control thread compiles it.
Likewise, scratch is allocated in advance; a launch never allocates it.

If a launch raises, the incumbent serves. A kernel that accesses memory out of bounds breaks the
CUDA context of the whole process, and nothing here can repair that. Therefore only variants that
passed the lab's memory checks reach a server.
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
"""Lengths queued for compiling; a later launch queues lengths again that did not fit."""
MAX_CODES = 64
"""Specialisations compiled for one variant.

The incumbent serves launches that need further ones.
"""
_PIECE_ALIGN = 256
_NO_SCRATCH = Ineligible("no-scratch")


class TritonVariant(DeviceVariant):
    """One artifact in language ``triton``: its binary is the text of the source.

    Parameters
    ----------
    artifact
        Verified.

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
        """Return a function that checks whether the current stream is captured.

        None in the interpreter.
        """
        if self._kernel.interpreted:
            return None
        return super().capturing()

    def prepare(self, key: Key) -> None:
        """Compile and load what launches of these lengths need, and allocate their scratch.

        Raises
        ------
        Refused
            ``compile-failed``, ``out-of-resources``, ``grid-invalid``, ``scratch-too-large`` or
            ``scratch-memory``.
        """
        self._prepare(tuple(self.spec.lengths(key).values()))

    def prepare_shipped(self) -> int:
        """Load all delivered code for this device; return for how many lengths.

        So launches of lengths that have not occurred yet find their code too.

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
                break  # of another backend: code is compiled when a launch needs it
            loaded += 1
        return loaded

    def counts(self) -> dict[str, int]:
        return self.shipped.tally.as_json()

    @property
    def pending(self) -> int:
        return len(self._pending)

    def prepare_pending(self) -> int:
        """Run one pending compilation; return how many were compiled.

        Only one: the calling thread also answers the daemon, whose rollback must not wait for more.
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
            log.warning("%s at %s: the incumbent serves: %s", self.spec.name, values, error)
        self._pending.pop(values, None)
        return made

    def _prepare(self, values: tuple[int, ...]) -> None:
        self._kernel.prepare(values, dtypes=self._names, device=self._device)
        if self._blocks is not None:
            self._blocks.reserve(self._layout(values)[1])
        self._codes.add(self._kernel.plan.specialisation(values))

    def _prepare_blocks(self) -> int:
        try:
            return 0 if self._blocks is None else self._blocks.serve()
        except Refused as error:
            log.warning("%s: the incumbent serves a stream: %s", self.spec.name, error)
            return 0

    def runner(self, values: tuple[int, ...]) -> Runner:
        """Return a function that launches at these lengths, now or when its code exists."""
        return self._runner(values, poisoned=False)

    def checked_runner(self, values: tuple[int, ...]) -> Runner:
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
        """Return why nothing can be launched at these lengths now; missing code is queued."""
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
        """Return the pieces of a lane's block; cached, since creating views costs microseconds."""
        assert lane.block is not None, "an acquired lane has one"
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
