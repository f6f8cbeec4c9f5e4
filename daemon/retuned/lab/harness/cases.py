"""Test cases: inputs with float64 and incumbent outputs, made once and hidden from children."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from retuned.contract import Digest, Workload
from retuned.errors import CandidateError, HarnessError
from retuned.lab.captured_inputs import WithCaptured
from retuned.lab.number_formats import is_float
from retuned.lab.oracle import rms_error
from retuned.lab.subject import Array, KernelUnderTest, coarse_inputs, make_inputs, numpy_dtype

EXACT_FAMILY = "exact-integer"
"""Family whose every intermediate is an integer: outputs must be bit-equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseKey:
    """A shape and a family of inputs."""

    axes: Mapping[str, int]
    family: str

    def __hash__(self) -> int:
        return hash((tuple(sorted(self.axes.items())), self.family))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The inputs and outputs of one `CaseKey`."""

    cell: CaseKey
    inputs: Mapping[str, Array]
    """In the layout of the definition, before any repacking."""
    reference: Mapping[str, Array]
    incumbent: Mapping[str, Array]
    degraded_rms: Mapping[str, float] = field(default_factory=dict)
    """Per output, the error that inputs of the next lower precision class cause, where known."""


class Seeds:
    """Secret seeds, drawn after candidates are frozen; no derived value enters a child."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    @property
    def commitment(self) -> Digest:
        """Digest of the secret: it identifies the secret in the evidence without revealing it."""
        return "sha256:" + hashlib.sha256(b"retuned seed " + self._secret).hexdigest()

    def seed(self, *names: object) -> int:
        """Return the seed of this name, constant for the life of this object."""
        text = repr(names).encode()
        digest = hashlib.blake2b(text, key=self._secret, digest_size=4).digest()
        return int.from_bytes(digest, "little")


class Launches(Protocol):
    """Runs the incumbent: a child with a variant, or the kernel in production."""

    def run(
        self, inputs: Mapping[str, Array], axes: Mapping[str, int], *, timeout_s: float
    ) -> dict[str, Array]: ...


class CaseCache:
    """Cases by key, made on first use."""

    def __init__(
        self,
        subject: KernelUnderTest,
        *,
        incumbent: Launches,
        seeds: Seeds,
        timeout_s: float = 60.0,
    ) -> None:
        self._subject = subject
        self._incumbent = incumbent
        self._seeds = seeds
        self._timeout_s = timeout_s
        self._cases: dict[tuple[object, ...], Case] = {}
        self._degraded: tuple[object, ...] | None = None

    @property
    def subject(self) -> KernelUnderTest:
        return self._subject

    def case(self, cell: CaseKey) -> Case:
        key = (tuple(cell.axes.items()), cell.family)
        if key not in self._cases:
            seed = self._seeds.seed("case", key)
            inputs = make_inputs(self._subject, cell.axes, seed=seed, family=cell.family)
            reference = self._subject.reference(inputs, cell.axes)
            self._cases[key] = Case(
                cell=cell,
                inputs=inputs,
                reference=reference,
                incumbent=self._incumbent.run(inputs, cell.axes, timeout_s=self._timeout_s),
                degraded_rms=self._degraded_rms(key, cell, inputs, reference),
            )
        return self._cases[key]

    def redraw(self, cell: CaseKey) -> dict[str, Array]:
        key = (tuple(cell.axes.items()), cell.family)
        seed = self._seeds.seed("redraw", key)
        return make_inputs(self._subject, cell.axes, seed=seed, family=cell.family)

    def incumbent_answer(
        self, inputs: Mapping[str, Array], axes: Mapping[str, int]
    ) -> dict[str, Array]:
        """Return the incumbent's outputs for inputs that belong to no case.

        Raises
        ------
        HarnessError
            If the incumbent fails, which is not evidence about a candidate.
        """
        try:
            return self._incumbent.run(inputs, axes, timeout_s=self._timeout_s)
        except CandidateError as error:
            raise HarnessError(f"the incumbent fails at {dict(axes)}: {error}") from error

    def _degraded_rms(
        self,
        key: tuple[object, ...],
        cell: CaseKey,
        inputs: dict[str, Array],
        reference: Mapping[str, Array],
    ) -> dict[str, float]:
        """Compute it once per book, for the first ordinary case: it costs a reference run."""
        if cell.family != self._subject.families[0] or self._degraded not in (None, key):
            return {}
        self._degraded = key
        degraded = self._subject.reference(coarse_inputs(inputs), cell.axes)
        return {
            name: rms_error(degraded[name], reference[name])
            for name, spec in self._subject.definition.outputs.items()
            if is_float(numpy_dtype(spec))
        }


def cells_for(
    subject: KernelUnderTest, workloads: Sequence[Workload], *, thorough: bool = False
) -> tuple[CaseKey, ...]:
    """Return the keys in order of rising cost, so that wrong candidates fail early.

    Every family runs at the smallest shape. The ordinary and the exact family run at every shape.
    The ordinary family also runs at the edges of every shape (one less, one more, and one), where
    tails and masks fail. Captured inputs run at the shapes they were captured at. `thorough` runs
    every family at every shape and edge.
    """
    shapes = _by_size([dict(workload.axes) for workload in workloads])
    edges = _by_size([edge for shape in shapes for edge in _edges(shape) if edge not in shapes])
    ordinary = subject.families[0]
    exact = [family for family in subject.families if family == EXACT_FAMILY]
    few = [*exact, ordinary]
    cells = [(shapes[0], family) for family in few]
    cells += [(shapes[0], family) for family in subject.families if family not in few]
    small = [shape for shape in (*edges, *shapes[1:])]
    for shape in _by_size(small):
        wanted = list(subject.families) if thorough else (few if shape in shapes else [ordinary])
        cells += [(shape, family) for family in wanted]
    if isinstance(subject, WithCaptured):  # asked last: ordinary inputs find most faults sooner
        cells += subject.shapes(workloads)
    return tuple(CaseKey(axes=axes, family=family) for axes, family in cells)


def _edges(shape: Mapping[str, int]) -> list[dict[str, int]]:
    found = []
    for axis, length in shape.items():
        for other in (1, length - 1, length + 1):
            if other >= 1 and other != length:
                found.append({**shape, axis: other})
    return found


def _by_size(shapes: Sequence[dict[str, int]]) -> list[dict[str, int]]:
    unique = {tuple(shape.items()): shape for shape in shapes}

    def size(shape: dict[str, int]) -> tuple[int, tuple[int, ...]]:
        product = 1
        for length in shape.values():
            product *= length
        return product, tuple(shape.values())

    return sorted(unique.values(), key=size)
