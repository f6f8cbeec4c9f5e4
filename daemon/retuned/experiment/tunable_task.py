"""What an experiment on a tunable needs from the server, as a record that crosses a process.

It is untrusted: servers report it. Every part has a bound, and an error has the place of what is
wrong. Recipes are compressed as text, because a ConfigMap holds 1 MB.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StrictInt,
    model_validator,
)

from retuned.contract import Environment, Record
from retuned.runtime.core.environment import SWITCHES
from retuned.runtime.tunables.records import MAX_RULES, bucket, canonical
from retuned.runtime_client.tunables import TunableReport
from retuned.stages.experiment import ExperimentPlan
from retuned.tunables.host import SERVER_VARIABLES

GPU_NAME = "GPU_NAME"
"""Name of the GPU's model in `Environment.numerics`."""
MAX_RECIPES = 256
MAX_RECIPES_BYTES = 16 << 20
"""Of all recipes as text, before they are compressed."""
MAX_REPORT_BYTES = 256 << 10
_LEFT_OUT = frozenset({"asked", "table"})
"""Parts of a report that an experiment does not read."""


def class_of(axes: Mapping[str, int]) -> str:
    """Return a name of the size class of a launch."""
    return canonical({name: bucket(value) for name, value in axes.items()})


def recipes_by_class(recipes: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return described launches by their size class, without those at the ends of one."""
    return {class_of(each["axes"]): each for each in recipes if not each.get("edge")}


def _plain(text: str) -> str:
    if "\0" in text:
        raise ValueError("it has a zero byte")
    return text


def _of_server(name: str) -> str:
    if not is_server_variable(name):
        raise ValueError(f"{name[:60]!r} is not a variable that an experiment gets")
    return name


def is_server_variable(name: str) -> bool:
    """Whether an experiment gets this variable of the server."""
    return name.startswith(SERVER_VARIABLES)


_Text = Annotated[str, Field(max_length=4096), AfterValidator(_plain)]
_Name = Annotated[str, Field(max_length=128), AfterValidator(_plain), AfterValidator(_of_server)]
_Axis = Annotated[str, Field(pattern=r"^[a-z_]{1,32}$")]
_Number = Annotated[StrictInt, Field(ge=0, le=2**53)]
_Axes = Annotated[dict[_Axis, _Number], Field(min_length=1, max_length=16)]


class ServerProcess(Record):
    """Interpreter, packages and variables of a server's process."""

    executable: Annotated[_Text, Field(pattern=r"^/")]
    """Its Python, an absolute path."""
    path: tuple[_Text, ...] = Field(default=(), max_length=256)
    """Its ``sys.path``."""
    variables: dict[_Name, _Text] = Field(default_factory=dict, max_length=512)
    versions: dict[_Axis, Annotated[str, Field(max_length=128)]] = Field(
        default_factory=dict, max_length=16
    )
    """Versions of Python and of packages that it has loaded."""
    has_device: bool = False
    """Whether it uses a GPU."""


class TableRule(Record):
    """One rule of a table."""

    when: Annotated[dict[_Axis, tuple[_Number, _Number]], Field(max_length=16)]
    """Least and greatest value, by axis."""
    config: dict[str, Any] = Field(min_length=1, max_length=64)

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        for name, (low, high) in self.when.items():
            if low > high:
                raise ValueError(f"when.{name} is from {low} to {high}")
        return self


class _Report(TunableReport):
    """A report with all that the runtime reports about its tunable."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)


class _Recipe(BaseModel):
    """A described launch."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)
    tunable: Annotated[str, Field(max_length=128)]
    family: Annotated[str, Field(max_length=64)]
    module: Annotated[str, Field(max_length=512, pattern=r"^[\w.]*$")] = ""
    axes: _Axes
    call: dict[str, Any]


def _unpacked(value: object) -> object:
    """Return recipes from their compressed text; other values are checked as they are."""
    if not isinstance(value, str):
        return value
    stream = zlib.decompressobj()
    try:
        text = stream.decompress(base64.b64decode(value, validate=True), MAX_RECIPES_BYTES + 1)
        if len(text) > MAX_RECIPES_BYTES:
            raise ValueError(f"more than {MAX_RECIPES_BYTES} bytes")
        if not stream.eof:
            raise ValueError("the compressed text is cut")
        return json.loads(text, parse_constant=_no_constant)
    except (binascii.Error, zlib.error, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not compressed JSON: {error}") from None


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not a number")


def _packed(recipes: Sequence[_Recipe]) -> str:
    """Return recipes as compressed text; equal recipes give an equal text."""
    text = canonical([each.model_dump(mode="json", exclude_unset=True) for each in recipes])
    return base64.b64encode(zlib.compress(text.encode(), level=9)).decode()


def _small(report: _Report) -> _Report:
    size = len(canonical(report.model_dump(mode="json", exclude_unset=True)).encode())
    if size > MAX_REPORT_BYTES:
        raise ValueError(f"{size} bytes, at most {MAX_REPORT_BYTES} are read")
    return report


class TunableInputs(Record):
    """A tunable of a server, for an experiment in another pod."""

    report: Annotated[_Report, AfterValidator(_small)]
    recipes: Annotated[
        tuple[_Recipe, ...],
        Field(max_length=MAX_RECIPES),
        BeforeValidator(_unpacked),
        PlainSerializer(_packed, when_used="json"),
    ]
    """Described launches; as text, compressed JSON in base64."""
    environment: ServerProcess
    measured_in: Environment
    """Environment that the evidence names: the server's."""
    in_force: tuple[TableRule, ...] = Field(default=(), max_length=MAX_RULES)
    """Rules of the table in force."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        """Refuse unknown facts that an experiment compares with its own place."""
        for name in ("torch", "triton"):
            if name not in self.environment.versions:
                raise ValueError(f"environment.versions has no {name}")
        if self.environment.has_device and not self.measured_in.numerics.get(GPU_NAME):
            raise ValueError(f"measured_in.numerics has no {GPU_NAME}, and the server uses a GPU")
        return self

    @model_validator(mode="after")
    def _one_tunable(self) -> Self:
        for number, each in enumerate(self.recipes):
            if each.tunable != self.report.id:
                raise ValueError(f"recipes.{number} is about {each.tunable}, not {self.report.id}")
        return self

    @classmethod
    def of(
        cls,
        report: Mapping[str, Any],
        recipes: Sequence[Mapping[str, Any]],
        *,
        environment: Mapping[str, Any],
        measured_in: Environment,
        in_force: Sequence[Mapping[str, Any]] = (),
    ) -> Self:
        """Return the record of what a runtime reports, without what no experiment reads.

        Raises
        ------
        ValidationError
            If a part is not as a runtime reports it, or is too large.
        """
        variables = dict(environment.get("variables", {})) | {
            name: value for name, value in measured_in.numerics.items() if name in SWITCHES
        }
        return cls.model_validate(
            {
                "report": {name: report[name] for name in report if name not in _LEFT_OUT},
                "recipes": list(recipes),
                "environment": {
                    "executable": environment.get("executable"),
                    "path": environment.get("path", ()),
                    "variables": {k: v for k, v in variables.items() if is_server_variable(str(k))},
                    "versions": environment.get("versions", {}),
                    "has_device": environment.get("device") is not None,
                },
                "measured_in": measured_in,
                "in_force": in_force,
            }
        )

    def for_plan(self, plan: ExperimentPlan) -> Self:
        """Return it with the recipes of the plan's size classes alone."""
        wanted = {class_of(each.axes) for each in plan.workloads}
        fitting = tuple(each for each in self.recipes if class_of(each.axes) in wanted)
        return self.model_copy(update={"recipes": fitting})
