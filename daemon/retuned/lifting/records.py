"""Runtime records of live Triton launches: untrusted data, parsed with bounds.

A refused kernel has one stable code and one sentence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)

from retuned.contract import Digest, DType, Record
from retuned.errors import Refused

MORE = "needs-more-launches"
"""Code that further launches may resolve; all other codes are final for this source."""
_LONGEST = 400


class NotLifted(Refused):
    """A live kernel that cannot become a definition; it runs unchanged.

    `reason` is a stable kebab-case code such as ``atomic-output``. `detail` and `line`, the text
    that caused the refusal, are sanitized, because they quote untrusted text.
    """

    def __init__(self, reason: str, *, detail: str, line: str = "") -> None:
        super().__init__(f"{harmless(detail)} [{reason}]")
        self.code = reason
        self.message = harmless(detail)
        self.line = harmless(line)


def harmless(text: object) -> str:
    r"""Return untrusted text without control characters and shortened.

    Examples
    --------
    >>> harmless("a\x1b[31mb")
    'a?[31mb'
    """
    return "".join(letter if " " <= letter <= "~" else "?" for letter in str(text)[:_LONGEST])


MAX_SOURCE_CHARS = 128 << 10
MAX_OBSERVATIONS = 512
"""Maximum of launches per kernel; the most frequent are used."""
MOST_ELEMENTS = 2**40
MARK = "@dtype:"
"""Prefix of the text that represents an element type given as a constexpr."""
_DTYPES = {
    "fp64": DType.FLOAT64,
    "fp32": DType.FLOAT32,
    "fp16": DType.FLOAT16,
    "bf16": DType.BFLOAT16,
    "fp8e4nv": DType.FLOAT8_E4M3FN,
    "fp8e4b8": DType.FLOAT8_E4M3FNUZ,
    "i64": DType.INT64,
    "i32": DType.INT32,
    "i8": DType.INT8,
    "u8": DType.UINT8,
    "i1": DType.BOOL,
    "u1": DType.BOOL,
}

Value = StrictBool | StrictInt | StrictFloat | StrictStr | None
Identifier = Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]{0,99}$")]


class _LenientRecord(Record):
    """Ignores fields that later versions of the runtime add."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)


class Param(_LenientRecord):
    """One argument of a launch."""

    name: Identifier
    kind: Literal["pointer", "int", "float", "constexpr", "other"]
    dtype: Annotated[str, Field(max_length=40)] | None = None
    value: Value = None
    numel: Annotated[int, Field(ge=0, le=MOST_ELEMENTS)] | None = None
    aligned16: bool | None = None
    """Whether a pointer's address is a multiple of 16 bytes."""

    @model_validator(mode="after")
    def _whole(self) -> Param:
        if self.kind == "pointer" and (self.numel is None or self.element is None):
            raise ValueError(f"the pointer '{self.name}' has no known type or no length")
        if self.kind == "int" and type(self.value) not in (int, bool):
            raise ValueError(f"the int '{self.name}' has no whole value")
        if self.kind == "float" and not isinstance(self.value, float):
            raise ValueError(f"the float '{self.name}' has no value")
        if isinstance(self.value, float) and not math.isfinite(self.value):
            raise ValueError(f"'{self.name}' is not finite")
        if type(self.value) is int and abs(self.value) >= 2**63:
            raise ValueError(f"'{self.name}' is wider than 64 bits")
        if isinstance(self.value, str) and len(self.value) > 200:
            raise ValueError(f"'{self.name}' is too long a text")
        return self

    @property
    def element(self) -> DType | None:
        text = (self.dtype or "").removeprefix("*").removeprefix("k").removeprefix("torch.")
        text = text.removeprefix("*")
        if text in _DTYPES:
            return _DTYPES[text]
        return DType(text) if text in set(DType) else None


class Observation(_LenientRecord):
    """One distinct launch."""

    kernel: Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]{1,512}$")]
    """``module:qualname``; untrusted text."""
    source_digest: Digest
    source: Annotated[str, Field(max_length=MAX_SOURCE_CHARS)] | None
    """Text of the function and its dependencies; None if the runtime found none."""
    unresolved: tuple[Annotated[str, Field(max_length=400)], ...] = Field(
        default=(), max_length=512
    )
    """Names that the text uses and does not define, with the reason."""
    params: tuple[Param, ...] = Field(min_length=1, max_length=128)
    options: dict[str, Value] = Field(default_factory=dict, max_length=64)
    grid: tuple[int, int, int]
    grid_source: Annotated[str, Field(max_length=4000)] | None = None
    """Text of the grid's rule, if the caller gave a function."""
    count: int = Field(default=1, ge=1, le=2**62)

    @model_validator(mode="after")
    def _one_launch(self) -> Observation:
        names = [param.name for param in self.params]
        if len(set(names)) != len(names):
            raise ValueError("two parameters have one name")
        if not all(1 <= programs < 2**31 for programs in self.grid):
            raise ValueError(f"no device launches the grid {self.grid}")
        return self

    @property
    def entry(self) -> str:
        return self.kernel.rpartition(":")[2].rpartition(".")[2]

    def of_kind(self, kind: str) -> dict[str, Param]:
        return {param.name: param for param in self.params if param.kind == kind}


def read_observations(raw: Iterable[object]) -> tuple[Observation, ...]:
    """Parse the runtime's records of one kernel.

    Raises
    ------
    NotLifted
        ``observation-invalid``.
    """
    try:
        found = [Observation.model_validate(_sized(each)) for each in raw]
    except (ValidationError, RecursionError) as error:
        detail = "a record is nested too deeply"
        if isinstance(error, ValidationError):
            told = error.errors(include_url=False, include_input=False)[0]
            detail = f"{'.'.join(map(str, told['loc'])) or 'a record'}: {told['msg']}"
        raise NotLifted("observation-invalid", detail=detail) from None
    found.sort(key=lambda each: -each.count)
    return tuple(found[:MAX_OBSERVATIONS])


def _sized(raw: object) -> Mapping[str, Any]:
    """Pad a grid of fewer than three dimensions, and write element types as marked texts."""
    if not isinstance(raw, Mapping):
        raise NotLifted("observation-invalid", detail=f"{harmless(raw)[:60]} is not a record")
    body, grid, params = dict(raw), raw.get("grid"), raw.get("params")
    if isinstance(grid, Sequence) and not isinstance(grid, str) and len(grid) < 3:
        body["grid"] = [*grid, *[1] * (3 - len(grid))]
    if isinstance(params, Sequence) and not isinstance(params, str):
        body["params"] = [_marked(param) for param in params]
    return body


def _marked(param: object) -> object:
    value = param.get("value") if isinstance(param, Mapping) else None
    if not isinstance(param, Mapping) or not isinstance(value, Mapping):
        return param
    if set(value) == {"dtype"} and isinstance(value["dtype"], str):
        return {**param, "value": MARK + value["dtype"]}
    return {**param, "kind": "other", "value": None}
