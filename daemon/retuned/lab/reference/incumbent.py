"""Incumbent oracle of a kernel that was lifted from a server and has no reference.

It runs in a separate process, with the parameters that the server launches it with. It proves
little: a variant gives the outputs that the server has given so far. That is enough for other
parameters of the same source (class P) and for nothing else. So the examiner refuses generated
sources if `JUDGED_BY_INCUMBENT` is among a definition's tags.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from retuned.contract import Definition, Solution
from retuned.errors import CandidateError, HarnessError
from retuned.lab.harness.arena import Arena
from retuned.lab.harness.run import Runner, arena_bytes
from retuned.lab.harness.variant import Variant
from retuned.lab.number_formats import widened
from retuned.lab.subject import Array
from retuned.lab.toolchain import toolchain_for

JUDGED_BY_INCUMBENT = "judged-by-incumbent"
_CALL_S = 120.0
_MOST_BYTES = 8 * 2**30


class IncumbentOracle:
    """Computes a definition's outputs by its incumbent, in a child started on first use."""

    def __init__(self, definition: Definition, incumbent: Solution) -> None:
        self._definition = definition
        self._incumbent = incumbent
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._runner: Runner | None = None
        self._bytes = 0
        self._folders = ExitStack()
        self._variant: Variant | None = None
        self.confined_by: tuple[str, ...] | None = None
        """The child's confinement; None before the first child."""
        weakref.finalize(self, _end, self._stack, self._folders)

    def compute(self, /, **inputs: Array) -> dict[str, Array]:
        """Return every output of the incumbent, in float64.

        Raises
        ------
        HarnessError
            If the incumbent fails.
        """
        axes = self._axes(inputs)
        with self._lock:
            try:
                answer = self._started(axes).run(inputs, axes, timeout_s=_CALL_S)
            except CandidateError as error:
                self.close()
                detail = f"the incumbent of {self._definition.name} fails: {error}"
                raise HarnessError(detail) from error
        return {name: widened(array) for name, array in answer.items()}

    def close(self) -> None:
        self._stack.close()
        self._runner, self._bytes = None, 0

    def _axes(self, inputs: Mapping[str, Array]) -> dict[str, int]:
        variable = dict.fromkeys(self._definition.variable_axes, 1)
        for name, spec in self._definition.inputs.items():
            for axis, length in zip(spec.shape, inputs[name].shape, strict=False):
                if axis in variable:
                    variable[axis] = length
        return variable

    def _started(self, axes: Mapping[str, int]) -> Runner:
        toolchain = toolchain_for(self._incumbent.language)
        if self._variant is None:
            folder = Path(self._folders.enter_context(TemporaryDirectory(prefix="retuned-oracle-")))
            self._variant = toolchain.build(
                self._incumbent, self._definition, folder=folder, shapes=[axes]
            ).variant
        variant = self._variant
        size = arena_bytes(
            self._definition,
            axes,
            scratch_bytes=variant.scratch_bytes,
            parts=variant.parts,
            zone_rows=toolchain.program.zone_rows,
        )
        if size > _MOST_BYTES:
            raise CandidateError("out-of-memory", detail=f"needs {size} bytes of tensors")
        if self._runner is None or size > self._bytes:
            self.close()
            arena = self._stack.enter_context(Arena(size))
            runner = Runner(self._definition, variant, arena=arena, program=toolchain.program)
            self._runner = self._stack.enter_context(runner)
            self._bytes = size
            self.confined_by = ("seccomp",) if runner.confined else ()
        return self._runner


def _end(*stacks: ExitStack) -> None:
    for stack in stacks:
        stack.close()
