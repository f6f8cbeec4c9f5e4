"""A problem as the lab sees it: definition, inputs on demand, float64 answers, and eager PyTorch.

Eager PyTorch takes the place of the incumbent. Its float32 error against float64 is the measure of
a candidate's error, and a candidate must be faster than it. What a problem's process sends about
itself is untrusted: `read_description` checks it.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field, ValidationError

from retuned.contract import AxisConst, Definition, DType, Record, TensorSpec
from retuned.errors import HarnessError
from retuned.lab.generators.spaces import SpaceLike
from retuned.lab.number_formats import NUMPY, is_float
from retuned.lab.subject import Array, shape_of
from retuned_bench.kernelbench.process import ProblemLimits, ProblemProcess, ProblemRefused

OP_TYPE = "kernelbench"
"""Family of every problem's definition."""
_Word = Annotated[str, Field(pattern=r"^[a-zA-Z][a-zA-Z0-9_]{0,63}$")]
_Length = Annotated[int, Field(ge=0, le=2**40)]


class Head(Record):
    """One tensor, as the problem's process describes it."""

    name: _Word
    """Name in the definition."""
    dtype: DType
    """Element type."""
    shape: tuple[_Length, ...] = Field(max_length=12)
    """Lengths, outermost first; empty for a tensor without axes."""
    scalar: bool = False
    """Whether the model takes a number, not a tensor."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * NUMPY[self.dtype].itemsize


class Described(Record):
    """What a problem consists of."""

    inputs: tuple[Head, ...] = Field(min_length=1, max_length=64)
    """What `forward` takes, in order."""
    weights: tuple[Head, ...] = Field(max_length=512)
    """Parameters, then buffers, in the order of their registration; those that are used."""
    outputs: tuple[Head, ...] = Field(min_length=1, max_length=64)
    """What `forward` returns."""

    @property
    def given(self) -> tuple[Head, ...]:
        """Inputs and weights, in launch order."""
        return (*self.inputs, *self.weights)

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors of one call."""
        return sum(head.size_bytes for head in (*self.given, *self.outputs))


class BadDescription(Exception):
    """A description that is none; its text says what is wrong with it."""


def read_description(answer: Mapping[str, Any]) -> Described:
    """Check a description.

    Raises
    ------
    BadDescription
        If a name, type or length is none, or two tensors have one name.
    """
    parts = {key: answer.get(key) for key in ("inputs", "weights", "outputs")}
    try:
        described = Described.model_validate_json(_json(parts))
    except (ValidationError, ValueError) as error:
        raise BadDescription(f"describes itself badly: {type(error).__name__}") from None
    names = [head.name for head in (*described.given, *described.outputs)]
    if len(set(names)) != len(names):
        raise BadDescription("describes two tensors of one name")
    return described


def definition_of(problem: str, text: str, described: Described) -> Definition:
    """Return a problem's definition: every axis is constant, axes of one length are one axis.

    Parameters
    ----------
    problem
        Its identity, such as ``level1/19_ReLU``.
    text
        Its source: the definition's reference, in PyTorch.
    described
        Its tensors.

    Examples
    --------
    >>> head = {"dtype": "float32", "shape": [4, 8]}
    >>> described = read_description({"inputs": [{"name": "x", **head}], "weights": [],
    ...                               "outputs": [{"name": "out", **head}]})
    >>> found = definition_of("level1/19_ReLU", "", described)
    >>> found.name, list(found.axes), found.inputs["x"].shape
    ('kernelbench.level1.19_ReLU', ['n4', 'n8'], ('n4', 'n8'))
    """
    heads = (*described.given, *described.outputs)
    tensors = (head for head in heads if not head.scalar)
    lengths = dict.fromkeys(length for head in tensors for length in head.shape)
    weights = {head.name for head in described.weights}
    return Definition(
        name=definition_name(problem),
        op_type=OP_TYPE,
        description=f"KernelBench problem {problem}"[:200],
        axes={f"n{length}": AxisConst(value=length) for length in lengths},
        inputs={head.name: _spec(head, constant=head.name in weights) for head in described.given},
        outputs={head.name: _spec(head) for head in described.outputs},
        reference=text,
        tags=("kernelbench", "pytorch-reference"),
    )


def definition_name(problem: str) -> str:
    """Return the name of a problem's definition.

    Examples
    --------
    >>> definition_name("level3/a b")
    'kernelbench.level3.a_b'
    """
    return f"kernelbench.{re.sub(r'[^a-zA-Z0-9_.-]', '_', problem.replace('/', '.'))}"[:128]


def told(heads: Sequence[Head]) -> list[dict[str, Any]]:
    """Return tensors as plain data, for the answer."""
    return [{"name": h.name, "dtype": str(h.dtype), "shape": list(h.shape)} for h in heads]


def _spec(head: Head, *, constant: bool = False) -> TensorSpec:
    axes = () if head.scalar else tuple(f"n{length}" for length in head.shape)
    return TensorSpec(shape=axes, dtype=head.dtype, constant=constant)


def _json(parts: Mapping[str, Any]) -> str:
    return json.dumps(parts)


FAMILIES = ("given", "given-again", "small", "outlier", "weights")
"""``given``: as the problem makes them, from a secret seed. ``small`` and ``outlier``: inputs of
both signs a thousandth as large, and with a few channels a hundred times as large. ``weights``:
moved away from what initialisation left, so that a bias of zeros counts."""
_MOVED = 0.1
_DESCRIBE_SEED = 11
_BATCH_US = 20_000.0
_GROUP_US = 20.0
"""Calls shorter than this are timed several at a time, as launches of kernels are."""
_MOST_CALLS = 5_000


class EagerModel:
    """A problem's model in its child: answers, and times by this process's clock.

    Parameters
    ----------
    process
        The child.
    described
        The problem's tensors.
    """

    def __init__(self, process: ProblemProcess, described: Described) -> None:
        self._process = process
        self._described = described
        self._turn = 0
        self._group = self._calls = 1
        self.threads = process.threads

    def run(
        self, inputs: Mapping[str, Array], axes: Mapping[str, int], *, timeout_s: float
    ) -> dict[str, Array]:
        """Return what the model answers in its own precision; as `Runner.run`.

        Raises
        ------
        HarnessError
            If it fails: that says nothing about a candidate.
        """
        del axes
        return self._forward(inputs, double=False, timeout_s=timeout_s)

    def exact(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return what the model answers in float64.

        Raises
        ------
        HarnessError
            If it fails.
        """
        found = self._forward(inputs, double=True, timeout_s=None)
        return {name: np.asarray(array, dtype=np.float64) for name, array in found.items()}

    def place(self, sets: Sequence[Mapping[str, Array]], *, compiles: bool = False) -> None:
        """Keep sets of inputs for timing; `compiles` lets PyTorch's compiler take the model.

        The number of threads becomes one, where that is faster than all: small tensors, and cores
        that others use too.

        Raises
        ------
        ProblemRefused
            If the model, or its compilation, fails.
        """
        for inputs in sets:
            self._process.call("place", arrays=self._arrays(inputs))
        self._choose_threads(2 * len(sets))
        if compiles:
            self._process.call("compile", timeout_s=self._process.compile_s)
        self._times_us(2 * len(sets), group=1)
        one_us = min(self._times_us(2 * len(sets), group=1))
        self._calls = max(1, min(_MOST_CALLS, round(_BATCH_US / one_us)))
        short = max(1, round(_GROUP_US / one_us))
        # A device works on while the next call is prepared: there a batch is one group.
        self._group = self._calls if self._process.device != "cpu" else min(short, self._calls)

    def batch_us(self) -> float:
        """Return the time of one call in a batch of about 20 ms, microseconds.

        On a processor it is the median over groups of calls, as long as the launches that a kernel
        is timed by: what other processes take does not count, for either side. The clock is the
        child's, bounded by this process's.

        Raises
        ------
        HarnessError
            If the child says times that cannot be.
        """
        groups = max(1, self._calls // self._group)
        return float(np.median(self._times_us(groups * self._group, group=self._group)))

    def close(self) -> None:
        """End the child."""
        self._process.close()

    def draw(self, seed: int) -> dict[str, Array]:
        """Return inputs and weights as the problem makes them from a seed.

        Raises
        ------
        ProblemRefused
            If it makes others than it described.
        """
        _, arrays = self._process.call("draw", seed=seed)
        given = self._described.given
        if [(a.dtype.name, a.shape) for a in arrays] != [(str(h.dtype), h.shape) for h in given]:
            raise ProblemRefused(
                "inputs-vary", "another seed makes inputs of other shapes or types"
            )
        return {head.name: array for head, array in zip(given, arrays, strict=True)}

    def _forward(
        self, inputs: Mapping[str, Array], *, double: bool, timeout_s: float | None
    ) -> dict[str, Array]:
        try:
            _, arrays = self._process.call(
                "forward", arrays=self._arrays(inputs), timeout_s=timeout_s, double=double
            )
        except ProblemRefused as error:
            raise HarnessError(f"the problem's model fails: {error}") from error
        outputs = self._described.outputs
        if [array.shape for array in arrays] != [head.shape for head in outputs]:
            raise HarnessError("the problem's model returns other shapes than it described")
        return {
            head.name: array.reshape(head.shape or (1,))
            for head, array in zip(outputs, arrays, strict=True)
        }

    def _arrays(self, inputs: Mapping[str, Array]) -> list[Array]:
        return [inputs[head.name].reshape(head.shape) for head in self._described.given]

    def _choose_threads(self, calls: int) -> None:
        times = {}
        for count in dict.fromkeys((self._process.threads, 1)):
            self._process.call("threads", count=count)
            self._times_us(calls, group=1)
            times[count] = float(np.median(self._times_us(2 * calls, group=1)))
        self.threads = min(times, key=lambda count: times[count])
        self._process.call("threads", count=self.threads)

    def _times_us(self, calls: int, *, group: int) -> list[float]:
        """Return the time of one call, by group of calls, microseconds."""
        begin = time.perf_counter_ns()
        try:
            answer, _ = self._process.call("time", calls=calls, first=self._turn, group=group)
        except ProblemRefused as error:
            raise HarnessError(f"the problem's model fails while it is timed: {error}") from error
        wall_ns = time.perf_counter_ns() - begin
        self._turn += calls
        times = answer.get("ns")
        if not isinstance(times, list) or not all(type(ns) is int and ns > 0 for ns in times):
            raise HarnessError("the problem's process says no times")
        if len(times) != -(-calls // group) or sum(times) > wall_ns:
            raise HarnessError("the problem's process says times that cannot be")
        return [ns / group / 1e3 for ns in times]


class ProblemSubject:
    """A problem's definition with its inputs and its float64 oracle; satisfies `Subject`.

    Parameters
    ----------
    definition
        What it computes.
    described
        Its tensors.
    eager
        Its model.
    """

    spaces: Sequence[SpaceLike] = ()
    """No structures exist for it."""

    def __init__(self, definition: Definition, described: Described, eager: EagerModel) -> None:
        self.definition = definition
        self.described = described
        self.eager = eager

    @property
    def families(self) -> tuple[str, ...]:
        """Names of input families."""
        return FAMILIES

    def reference(self, inputs: dict[str, Array], axes: Mapping[str, int]) -> dict[str, Array]:
        """Compute every output in float64."""
        del axes
        return self.eager.exact(inputs)

    def inputs(self, axes: Mapping[str, int], *, seed: int, family: str) -> dict[str, Array]:
        """Make every input; same seed, same bytes."""
        lengths = self.definition.lengths(axes)
        rng = np.random.default_rng([seed, FAMILIES.index(family)])
        try:
            drawn = self.eager.draw(int(rng.integers(2**31)))
        except ProblemRefused as error:
            raise HarnessError(f"the problem makes no inputs: {error}") from error
        found = {}
        for name, spec in self.definition.inputs.items():
            array = drawn[name].reshape(shape_of(spec, lengths))
            if is_float(array.dtype):
                changed = _moved(array, rng) if spec.constant else _varied(array, rng, family)
                array = array if spec.constant and family != "weights" else changed
            found[name] = array
        return found


def open_problem(
    problem: str,
    text: str,
    *,
    device: str,
    cores: Sequence[int] = (),
    limits: ProblemLimits | None = None,
) -> ProblemSubject:
    """Execute a problem in a child and find out what it is.

    Raises
    ------
    ProblemRefused
        If it fails, or does what no kernel can be compared with; the code says which.
    MissingDependency
        If this machine cannot confine the child.
    """
    limits = limits or ProblemLimits()
    process = ProblemProcess(text, device=device, cores=cores, limits=limits)
    try:
        answer, _ = process.call("describe", seed=_DESCRIBE_SEED)
        described = read_description(answer)
        if described.size_bytes > limits.tensor_bytes:
            size = described.size_bytes / 2**30
            raise ProblemRefused("too-large", f"{size:.1f} GiB of tensors")
        definition = definition_of(problem, text, described)
    except BadDescription as error:
        process.close()
        raise ProblemRefused("bad-answer", str(error)) from None
    except BaseException:
        process.close()
        raise
    return ProblemSubject(definition, described, EagerModel(process, described))


def open_compiled(
    text: str,
    described: Described,
    *,
    device: str,
    cores: Sequence[int] = (),
    limits: ProblemLimits | None = None,
) -> EagerModel:
    """Execute a problem in a second child, which may start PyTorch's compiler.

    Raises
    ------
    ProblemRefused
        If it fails, or describes itself otherwise there.
    MissingDependency
        If this machine cannot confine such a child.
    """
    process = ProblemProcess(text, device=device, cores=cores, compiles=True, limits=limits)
    try:
        answer, _ = process.call("describe", seed=_DESCRIBE_SEED)
        if read_description(answer) != described:
            raise ProblemRefused("inputs-vary", "describes itself otherwise the second time")
    except BadDescription as error:
        process.close()
        raise ProblemRefused("bad-answer", str(error)) from None
    except BaseException:
        process.close()
        raise
    return EagerModel(process, described)


def _varied(array: Array, rng: np.random.Generator, family: str) -> Array:
    """Change an input as its family says; one of a single sign may be a probability, and stays."""
    wide = array.astype(np.float64)
    if family not in ("small", "outlier") or not (wide.min(initial=0) < 0 < wide.max(initial=0)):
        return array
    if family == "small":
        return np.asarray((wide * 1e-3).astype(array.dtype))
    channels = rng.choice(wide.shape[-1], size=max(1, wide.shape[-1] // 100), replace=False)
    wide[..., channels] *= 100.0
    return np.asarray(wide.astype(array.dtype))


def _moved(array: Array, rng: np.random.Generator) -> Array:
    """Move weights a little: what is zero or one everywhere too, what lies above zero stays so."""
    wide = array.astype(np.float64)
    noise = rng.uniform(-_MOVED, _MOVED, wide.shape)
    if not wide.any():
        return np.asarray(noise.astype(array.dtype))
    return np.asarray((wide * (1.0 + noise)).astype(array.dtype))
