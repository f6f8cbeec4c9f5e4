"""The kernel contract: what a kernel computes, on which shapes, and who computes it.

Definition, Workload and Solution follow the FlashInfer-Bench JSON schema where it has a field, so
that datasets interchange; what it lacks (HIP and CPU languages, guards, layouts, weights) is added
here. A candidate is device code plus declarative launch data. It never owns host code: Retuned
allocates, launches, times and checks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9_.:-]{0,127}$")]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Dim = Annotated[int, Field(ge=0, le=2**40)]


class Record(BaseModel):
    """Base of all that crosses a process: frozen, strict about unknown fields, documented."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True
    )


def digest_of(body: object) -> str:
    """Content digest of JSON-able data: same data, same digest, on every machine.

    Examples
    --------
    >>> digest_of({"b": 1, "a": 2}) == digest_of({"a": 2, "b": 1})
    True
    """
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


class DType(StrEnum):
    """Element types, named as PyTorch prints them without the ``torch.`` prefix."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT8_E4M3FN = "float8_e4m3fn"
    FLOAT8_E4M3FNUZ = "float8_e4m3fnuz"
    INT64 = "int64"
    INT32 = "int32"
    INT8 = "int8"
    UINT8 = "uint8"
    BOOL = "bool"


class AxisConst(Record):
    """An axis whose length is part of the definition."""

    type: Literal["const"] = "const"
    value: Dim
    """Length of the axis."""


class AxisVar(Record):
    """An axis whose length each workload names."""

    type: Literal["var"] = "var"
    description: str = ""
    """What the axis counts, for people."""


class ValueLike(StrEnum):
    """What the numbers of an input must be like to mean something."""

    INTEGERS = "integers"
    """Whole numbers from `low` to `high`, both included."""
    OFFSETS = "offsets"
    """Whole numbers along the last axis that never fall, from `low` on; the last is `high`."""
    PERMUTATION = "permutation"
    """Every number from 0 to the count of all elements minus one, once."""
    ROWS_PERMUTED = "rows-permuted"
    """Along the last axis every number from 0 to its length minus one, once."""
    UNIFORM = "uniform"
    """Real numbers anywhere from `low` to `high`."""


Bound = Annotated[float, Field(allow_inf_nan=False)] | Annotated[str, Field(max_length=200)]


class ValueRule(Record):
    """How an input may be made up where its numbers mean something, such as places in a table.

    A server checks a variant on inputs that it makes up itself; an index beyond its table would
    read what is not there.
    """

    like: ValueLike
    """What the numbers are like."""
    low: Bound = 0
    """Least; a number, or an expression over axes such as ``C - 1``."""
    high: Bound = 0
    """Largest; as `low`."""


class TensorSpec(Record):
    """One input or output."""

    shape: tuple[Name, ...]
    """Axis names, outermost first; empty means a scalar passed as a one-element tensor."""
    dtype: DType
    """Element type."""
    constant: bool = False
    """True for weights: same storage on every launch, so a variant may ask for another layout."""
    values: ValueRule | None = None
    """How a server may make it up for a self-check; None where any number will do."""
    updates: Name | None = None
    """Of an output: the input whose values it holds before the launch, of the same shape and type;
    the kernel changes it in place. None for an output that is only written."""

    @model_serializer(mode="wrap")
    def _without_what_is_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what is not said: definitions look as they always did."""
        body: dict[str, Any] = handler(self)
        for name in ("values", "updates"):
            if body.get(name) is None:
                body.pop(name, None)
        return body


class Definition(Record):
    """What a kernel computes."""

    name: Name
    """Unique, for example ``linear_w8a32_n1024_k1024``."""
    op_type: Name
    """Family, for example ``linear_w8`` or ``rmsnorm``."""
    description: str = ""
    """One sentence for people."""
    axes: dict[Name, Annotated[AxisConst | AxisVar, Field(discriminator="type")]]
    """Every axis that a shape names."""
    inputs: dict[Name, TensorSpec]
    """Inputs in launch order."""
    outputs: dict[Name, TensorSpec]
    """Outputs in launch order."""
    reference: str
    """Python source with ``def run(**inputs) -> dict[str, ndarray]``, evaluated in float64."""
    tags: tuple[str, ...] = ()
    """Free labels."""

    @model_validator(mode="after")
    def _shapes_name_axes(self) -> Definition:
        for side in (self.inputs, self.outputs):
            for name, spec in side.items():
                unknown = [axis for axis in spec.shape if axis not in self.axes]
                if unknown:
                    raise ValueError(f"tensor '{name}' names unknown axes {unknown}")
        both = self.inputs.keys() & self.outputs.keys()
        if both:
            raise ValueError(
                f"{sorted(both)} are both input and output; name the output otherwise, and say "
                "which input it updates"
            )
        return self

    @model_validator(mode="after")
    def _updates_fit(self) -> Definition:
        wrong = [name for name, spec in self.inputs.items() if spec.updates is not None]
        if wrong:
            raise ValueError(f"{wrong} are inputs; only outputs update something")
        updated = list(self.updated.values())
        if len(set(updated)) != len(updated):
            raise ValueError("two outputs update one input")
        for output, name in self.updated.items():
            before, after = self.inputs.get(name), self.outputs[output]
            if before is None or (before.shape, before.dtype) != (after.shape, after.dtype):
                raise ValueError(f"'{output}' updates '{name}', no input of its shape and type")
            if before.constant:
                raise ValueError(f"'{output}' updates '{name}', which is constant")
        return self

    @property
    def updated(self) -> dict[str, str]:
        """Outputs that a launch changes in place, with the input each holds before it."""
        return {n: spec.updates for n, spec in self.outputs.items() if spec.updates is not None}

    @property
    def variable_axes(self) -> tuple[str, ...]:
        """Names of the axes a workload must give, in declaration order."""
        return tuple(n for n, axis in self.axes.items() if isinstance(axis, AxisVar))

    def lengths(self, axes: Mapping[str, int]) -> dict[str, int]:
        """Length of every axis, in declaration order, given the variable ones.

        Raises
        ------
        ValueError
            If `axes` names other axes than the variable ones.
        """
        if set(axes) != set(self.variable_axes):
            raise ValueError(f"{self.name} needs axes {self.variable_axes}, got {sorted(axes)}")
        return {
            name: axis.value if isinstance(axis, AxisConst) else axes[name]
            for name, axis in self.axes.items()
        }


class Workload(Record):
    """Concrete lengths of the variable axes, with their weight in production."""

    definition: Name
    """Name of the definition."""
    axes: dict[Name, Dim]
    """Length of each variable axis."""
    weight: float = Field(default=1.0, ge=0.0)
    """Launches per second in the present profile; only ratios between workloads matter."""


class Guard(Record):
    """The shapes a variant is for; everything else goes to the incumbent."""

    bounds: dict[Name, tuple[Dim, Dim]] = Field(default_factory=dict)
    """Inclusive range per variable axis; an axis not named is free."""

    @model_validator(mode="after")
    def _ordered(self) -> Guard:
        for axis, (low, high) in self.bounds.items():
            if low > high:
                raise ValueError(f"guard on '{axis}' is empty: {low} > {high}")
        return self

    def allows(self, axes: Mapping[str, int]) -> bool:
        """Whether the variant may run at these lengths; an axis that is not known is not allowed.

        Examples
        --------
        >>> Guard(bounds={"M": (16, 512)}).allows({"M": 8})
        False
        """
        return all(
            axis in axes and low <= axes[axis] <= high for axis, (low, high) in self.bounds.items()
        )

    def covers(self, other: Guard) -> bool:
        """Whether every shape that `other` allows is allowed here.

        Examples
        --------
        >>> wide, narrow = Guard(bounds={"M": (1, 64)}), Guard(bounds={"M": (2, 4)})
        >>> wide.covers(narrow), narrow.covers(wide), wide.covers(Guard())
        (True, False, False)
        """
        return all(
            axis in other.bounds and low <= other.bounds[axis][0] and other.bounds[axis][1] <= high
            for axis, (low, high) in self.bounds.items()
        )

    def __str__(self) -> str:
        if not self.bounds:
            return "all shapes"
        return ", ".join(f"{low} <= {axis} <= {high}" for axis, (low, high) in self.bounds.items())


class Language(StrEnum):
    """What a candidate is written in."""

    CPU_CPP = "cpu_cpp"
    TRITON = "triton"
    GPU_CPP = "gpu_cpp"
    LIBRARY = "library"
    """Nothing that is compiled: a solution of a library that servers have, named by a row of a
    table. No toolchain of ours measures it."""


class TrustClass(StrEnum):
    """How much a candidate's author is trusted."""

    PARAMETERS = "P"
    """Other parameters of a source that people audited."""
    GENERATED = "L"
    """Source written by a generator; all gates and a person."""


class SourceFile(Record):
    """One file of a solution."""

    path: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,127}$")]
    """File name without folders."""
    content: Annotated[str, Field(max_length=1_000_000)]
    """Its text."""


Symbol = Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]{0,127}$")]
Expression = Annotated[str, Field(max_length=200)]


class Step(Record):
    """One launch of a variant that needs several; they run in order on one stream."""

    entry: Symbol
    """Symbol to launch."""
    grid: tuple[Expression, ...] = Field(min_length=1, max_length=3)
    """Programs per dimension, as `Solution.grid`."""
    params: dict[Name, int | str] = Field(default_factory=dict)
    """Parameters of this step alone; they go before the solution's of the same name."""


class Scratch(Record):
    """Memory that the steps of a variant share: allocated by Retuned, gone after the launch."""

    name: Symbol
    """The parameter of the steps that gets it."""
    dtype: DType
    """Element type."""
    shape: tuple[Expression, ...] = Field(min_length=1, max_length=8)
    """Integer expressions over all axes and the solution's integer parameters."""
    zeroed: bool = False
    """Filled with zeros at the start of every launch, as part of what is timed; else it holds
    anything."""


class Solution(Record):
    """A variant: source or parameters, how to launch it, and where it may run."""

    name: Name
    """For people, for example ``linear_w8.panels-32``."""
    definition: Name
    """Name of the definition it implements."""
    language: Language
    """Language of the sources."""
    entry: Symbol
    """Symbol to launch; that of the first step where there are several."""
    sources: tuple[SourceFile, ...] = Field(min_length=1)
    """Device code."""
    structure: Name
    """Which algorithm it is, for example ``row-dots``; variants of one structure share source."""
    params: dict[Name, int | str] = Field(default_factory=dict)
    """Compile-time parameters, passed as ``-DNAME=value`` or constexpr. GPU C++ has its block in
    them, ``BLOCK_X`` and where they are not 1 ``BLOCK_Y`` and ``BLOCK_Z``, and its dynamic shared
    memory, ``SHARED_BYTES``."""
    grid: tuple[Expression, ...] = Field(default=(), max_length=3)
    """Programs per dimension of a GPU launch: integer expressions over all axes and integer
    parameters, such as ``cdiv(M, BLOCK_M)``; empty for CPU languages and where there are steps."""
    steps: tuple[Step, ...] = Field(default=(), max_length=16)
    """Launches, in order; empty for the usual one of `entry` over `grid`. Triton only."""
    scratch: tuple[Scratch, ...] = Field(default=(), max_length=16)
    """Memory that steps hand on to each other, by name. Triton only."""
    layouts: dict[
        Name, Annotated[str, Field(pattern=r"^(as-is|transposed|panels-[0-9]{1,4})$")]
    ] = Field(default_factory=dict)
    """Layout that constant inputs are repacked to, by Retuned, before the first launch."""
    scratch_bytes: int = Field(default=0, ge=0, le=2**30)
    """Workspace that Retuned allocates and passes on every launch."""
    guard: Guard = Field(default_factory=Guard)
    """Shapes the variant is for."""
    trust: TrustClass = TrustClass.GENERATED
    """Class of its author."""
    author: str = ""
    """Generator or person, for the record; no decision reads it."""
    parents: tuple[Digest, ...] = Field(default=(), max_length=16)
    """Digests of the variants it was made from; for the record."""
    prompt: Digest | None = None
    """Digest of the prompt that a model answered with it; for the record. None where none did."""

    @model_validator(mode="after")
    def _steps_fit(self) -> Solution:
        if (self.steps or self.scratch) and self.language is not Language.TRITON:
            raise ValueError(f"steps and scratch are for {Language.TRITON}, not {self.language}")
        if self.steps and (self.grid or self.steps[0].entry != self.entry):
            raise ValueError("with steps, each has its grid, and entry is that of the first")
        if self.scratch and self.scratch_bytes:
            raise ValueError("scratch is either named or scratch_bytes, not both")
        return self

    @property
    def launches(self) -> tuple[Step, ...]:
        """Every launch of a GPU variant, in order; one where it has no steps."""
        return self.steps or (Step.model_construct(entry=self.entry, grid=self.grid, params={}),)

    @property
    def digest(self) -> str:
        """Content digest of all that decides what runs; guard, name and author are left out."""
        decides = {
            "definition",
            "language",
            "entry",
            "sources",
            "params",
            "layouts",
            "scratch_bytes",
        }
        if self.grid:  # only then, so that digests of CPU variants stay what they were
            decides.add("grid")
        decides |= {name for name in ("steps", "scratch") if getattr(self, name)}
        return digest_of(self.model_dump(mode="json", include=decides))


class Environment(Record):
    """Where evidence was measured; evidence expires when any of it changes."""

    arch: str
    """GPU architecture such as ``gfx942`` or ``sm_90``, or ``cpu:`` and the processor's name."""
    driver: str = ""
    """Kernel driver version; empty on a CPU."""
    runtime: str = ""
    """ROCm or CUDA version; empty on a CPU."""
    compiler: str = ""
    """Compiler and version."""
    torch: str = ""
    """PyTorch version; empty where not installed."""
    triton: str = ""
    """Triton version; empty where not installed."""
    numerics: dict[str, str] = Field(default_factory=dict)
    """Settings that change rounding, such as ``TRITON_DEFAULT_FP_FUSION``."""

    @property
    def digest(self) -> str:
        """Content digest; equal digests mean that evidence carries over."""
        return digest_of(self.model_dump(mode="json"))


class TraceStatus(StrEnum):
    """How running a solution on a workload ended; the words of FlashInfer-Bench."""

    PASSED = "PASSED"
    INCORRECT_SHAPE = "INCORRECT_SHAPE"
    INCORRECT_NUMERICAL = "INCORRECT_NUMERICAL"
    INCORRECT_DTYPE = "INCORRECT_DTYPE"
    RUNTIME_ERROR = "RUNTIME_ERROR"
    COMPILE_ERROR = "COMPILE_ERROR"
    TIMEOUT = "TIMEOUT"


class Trace(Record):
    """The outcome of one solution on one workload in one environment; or a workload alone."""

    definition: Name
    """Name of the definition."""
    workload: Workload
    """Shape and weight."""
    solution: Name | None = None
    """Name of the solution; None for a workload on which nothing was run."""
    candidate: Digest | None = None
    """Digest of the solution; None where only its name is known."""
    incumbent: Digest | None = None
    """What it was compared with; None where that is not known."""
    status: TraceStatus | None = None
    """How it ended; None for a workload on which nothing was run."""
    reason: Annotated[str, Field(max_length=80)] = ""
    """Stable code of the verdict, such as ``wrong-output``; empty where there is none."""
    gate: Annotated[str, Field(max_length=8)] = ""
    """Gate that decided; empty where there is none."""
    detail: Annotated[str, Field(max_length=4000)] = ""
    """One sentence with the numbers."""
    latency_us: float | None = Field(default=None, gt=0.0, allow_inf_nan=False)
    """Median time of the solution, microseconds; only where it passed."""
    reference_latency_us: float | None = Field(default=None, gt=0.0, allow_inf_nan=False)
    """Median time of what it was compared with, microseconds; only where it passed."""
    speedup_factor: float | None = Field(default=None, gt=0.0, allow_inf_nan=False)
    """Paired estimate, reference over solution; only where it passed."""
    speedup_bounds: tuple[float, float] | None = None
    """Lower and upper confidence bound of the speedup; None where none was computed."""
    confidence: float | None = Field(default=None, gt=0.0, lt=1.0)
    """Of each bound on its own."""
    error_ratio: float | None = Field(default=None, ge=0.0, allow_inf_nan=False)
    """Largest error against float64, relative to the incumbent's; None where not measured."""
    max_absolute_error: float | None = Field(default=None, ge=0.0, allow_inf_nan=False)
    """Largest absolute error; None where not measured."""
    max_relative_error: float | None = Field(default=None, ge=0.0, allow_inf_nan=False)
    """Largest relative error; None where not measured."""
    environment: Environment | None = None
    """Where it was measured; None for a workload on which nothing was run."""
    timestamp: Annotated[str, Field(max_length=64)] = ""
    """When, ISO 8601 with a zone; empty for a workload on which nothing was run."""

    @model_validator(mode="after")
    def _numbers_only_where_it_passed(self) -> Trace:
        ran = (self.solution, self.status, self.environment, self.timestamp or None)
        if any(each is None for each in ran) and any(each is not None for each in ran):
            raise ValueError("a solution comes with status, environment and timestamp, or alone")
        timed = (self.latency_us, self.reference_latency_us, self.speedup_factor)
        passed = self.status is TraceStatus.PASSED
        if any((each is None) is passed for each in timed):
            raise ValueError("latencies and speedup are there exactly where it passed")
        if self.workload.definition != self.definition:
            raise ValueError(f"the workload is of '{self.workload.definition}'")
        return self
