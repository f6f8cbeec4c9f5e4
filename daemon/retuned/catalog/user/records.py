"""Record of a user's own definition: it is sent to the experiment's process by content."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, model_validator

from retuned.contract import Definition, Language, Name, Record, SourceFile, TrustClass

Params = dict[Name, int | str]
Text = Annotated[str, Field(max_length=400)]
MOST_POINTS = 50_000
"""Maximum of points of one variant's space, valid or not: the search visits every one."""


class Distribution(StrEnum):
    """Distribution of an input's numbers."""

    NORMAL = "normal"
    """Normal around `mean` with deviation `scale`."""
    UNIFORM = "uniform"
    """Anywhere from `low` to `high`."""
    POSITIVE = "positive"
    """Above zero: the absolute value of a normal number times `scale`, plus a thousandth of it."""
    INTEGERS = "integers"
    """Integers from `low` to `high`, inclusive."""
    PERMUTATION = "permutation"
    """Along the last axis every number from 0 to its length minus one, once."""
    CONSTANT = "constant"
    """`value` everywhere."""


_TAKES: dict[Distribution, tuple[str, ...]] = {
    Distribution.NORMAL: ("mean", "scale"),
    Distribution.UNIFORM: ("low", "high"),
    Distribution.POSITIVE: ("scale",),
    Distribution.INTEGERS: ("low", "high"),
    Distribution.PERMUTATION: (),
    Distribution.CONSTANT: ("value",),
}
_NUMBERS = ("mean", "scale", "low", "high", "value")


class InputRecipe(Record):
    """Recipe of an input; families of the lab modify it, for example with infinities."""

    like: Distribution = Distribution.NORMAL
    """The distribution."""
    mean: float | None = Field(default=None, allow_inf_nan=False)
    """Of a normal distribution; default 0."""
    scale: float | None = Field(default=None, gt=0.0, allow_inf_nan=False)
    """Deviation; default 1."""
    low: float | None = Field(default=None, allow_inf_nan=False)
    """Least value; default 0."""
    high: float | None = Field(default=None, allow_inf_nan=False)
    """Largest value; default 1."""
    value: float | None = Field(default=None, allow_inf_nan=False)
    """Of a constant; default 0."""
    varied: bool = True
    """Whether families change it. Weights and integers are never changed."""

    @model_validator(mode="after")
    def _only_what_it_takes(self) -> InputRecipe:
        takes = _TAKES[self.like]
        for name in _NUMBERS:
            if getattr(self, name) is not None and name not in takes:
                has = ", ".join(takes) or "nothing more"
                raise ValueError(f"'{self.like}' takes {has}, not '{name}'")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low {self.low:g} is above high {self.high:g}")
        if self.like is Distribution.INTEGERS and not all(
            float(bound or 0.0).is_integer() for bound in (self.low, self.high)
        ):
            raise ValueError("whole numbers have whole bounds")
        return self


class OwnVariant(Record):
    """One source structure, and the parameters it may be compiled with."""

    structure: Name
    language: Language
    entry: Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]{0,127}$")]
    sources: tuple[SourceFile, ...] = Field(min_length=1, max_length=16)
    params: dict[Name, tuple[int | str, ...]] = Field(default_factory=dict, max_length=16)
    incumbent: Params | None = None
    """The point in production; exactly one variant of each language has it."""
    starts: tuple[Params, ...] = Field(default=(), max_length=16)
    valid: Text = ""
    grid: tuple[Annotated[str, Field(max_length=200)], ...] = Field(default=(), max_length=3)
    layouts: dict[
        Name, Annotated[str, Field(pattern=r"^(as-is|transposed|panels-[0-9]{1,4})$")]
    ] = Field(default_factory=dict)
    scratch_bytes: Text = "0"
    trust: TrustClass = TrustClass.PARAMETERS
    """Trust class of the author: a source fitted to a live kernel is a generator's."""
    serves: Annotated[str, Field(pattern=r"^([a-zA-Z_][a-zA-Z0-9_]{0,127})?$")] = ""
    """Function that gets the launch's own numbers, for a variant that replaces a lifted kernel's
    source. Empty otherwise.
    """


class OwnTraces(Record):
    """Appearance of the kernel in a trace."""

    op: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_:.]{1,200}$")]
    shapes: tuple[tuple[Name, ...], ...]
    dtypes: tuple[str, ...]


class LiftedFrom(Record):
    """The live kernel of a lifted definition, and how a launch of it is bound.

    A launch belongs to the definition if every argument matches; otherwise it is not changed.
    """

    kernel: Annotated[str, Field(max_length=512)]
    """``module:qualname``, as the runtime spells it; untrusted text."""
    source_digest: Annotated[str, Field(max_length=200)]
    parameters: tuple[str, ...]
    tensors: dict[Name, str]
    """Live parameter of each input and output."""
    axes: dict[Name, str]
    """Source of each variable axis in a launch: ``param:NAME`` or ``grid:0``."""
    ints: dict[str, Text] = Field(default_factory=dict)
    numels: dict[str, Text] = Field(default_factory=dict)
    floats: dict[str, float] = Field(default_factory=dict)
    constants: dict[str, bool | int | float | str | None] = Field(default_factory=dict)
    options: dict[str, int] = Field(default_factory=dict)
    grid: tuple[Text, ...] = Field(min_length=1, max_length=3)
    dtypes: dict[str, str] = Field(default_factory=dict)
    notes: tuple[Text, ...] = Field(default=(), max_length=32)
    """Differences between the parsed and the running code, for people."""


class OwnDefinition(Record):
    """A user's own kernel with all data that a search and a judge need."""

    definition: Definition
    made: dict[Name, InputRecipe]
    families: tuple[str, ...] = Field(min_length=1)
    where: Text = ""
    flops: Text = "0"
    traces: OwnTraces
    variants: tuple[OwnVariant, ...] = Field(min_length=1, max_length=32)
    lifted: LiftedFrom | None = None
    """Its live kernel; None for a file. With an empty reference the incumbent's outputs are the
    oracle.
    """

    @property
    def judged_by_incumbent(self) -> bool:
        """Whether the incumbent is the oracle, for want of a reference."""
        return self.lifted is not None and not self.definition.reference.strip()

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def languages(self) -> tuple[Language, ...]:
        return tuple(dict.fromkeys(variant.language for variant in self.variants))
