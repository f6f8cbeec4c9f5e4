"""Rules that bind a variant to an intercepted launch: ``intercept`` in ``artifact.json``.

::

    "intercept": {
      "kernel": "module:qualname", "source_digest": "sha256:...",   kernel whose launches bind
      "code": "live" | "artifact",        other parameters of the server's code, or another source
      "axes": {"M": "grid_0", "N": "n_cols"},                    length of each variable axis
      "dtypes": {"x_ptr": "float16", ...},                       of every pointer
      "constexprs": {"HAS_BIAS": false, "eps": 1e-6},       constexprs and numbers it must have
      "ints": {"stride": "N"},            whole arguments it must have, over the axes
      "numels": {"x_ptr": "M * N"},       elements that tensors must have, over the axes
      "stores": {"y_ptr": "write" | "update"},                   pointers it stores to
      "bind": {"x": "x_ptr"},             parameter of the variant -> of the kernel; same by default
      "grid": "kept"                      if the server's own grid is valid for the variant
    }

``params`` of the artifact are the variant's constexprs and options; its ``grid`` is a rule over the
axes, the launch's integers and constexprs (the variant's first), ``grid_0`` to ``grid_2`` of the
server's own launch and ``numel_<pointer>``. An axis may also be written ``param:NAME`` or
``grid:0``. A launch that does not meet a condition runs the server's code.

With ``code: artifact`` every whole number of a launch must be an axis, or be named in ``ints`` or
``constexprs``. The same applies to all arguments that the source ignores or compiles into its code;
see `shape_limits`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from retuned.runtime.core.grid import parse_expression
from retuned.runtime.intercept.arguments import is_pointer
from retuned.runtime.intercept.call import LaunchCall
from retuned.runtime.intercept.registry import Kernel
from retuned.runtime.schema import DTYPES, Key, Refused, Spec

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
_KERNEL = re.compile(r"[^\x00-\x1f\x7f]{1,512}\Z")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
_FIELDS = frozenset(
    (
        *("kernel", "source_digest", "code", "axes", "dtypes", "constexprs", "ints", "numels"),
        *("stores", "bind", "grid"),
    )
)
_MAX_ENTRIES = 128
GRID_NAMES = ("grid_0", "grid_1", "grid_2")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRule:
    kernel: str
    source_digest: str
    """Digest of the kernel's source with everything it uses."""
    live: bool
    """Whether the server's own code runs with other parameters."""
    axes: Mapping[str, str]
    """Variable axis -> expression over a launch."""
    dtypes: Mapping[str, str]
    constexprs: Mapping[str, Any]
    """Constexpr -> the value it must have."""
    ints: Mapping[str, str]
    """Integer argument -> expression over all axes that it must equal."""
    numels: Mapping[str, str]
    """Pointer -> expression over all axes: elements that its tensor must have."""
    stores: Mapping[str, str]
    """Pointer that is stored to -> ``write``, or ``update`` if it is read too."""
    bind: Mapping[str, str]
    """Parameter of the variant -> parameter of the kernel, where the names differ."""
    keeps_grid: bool


def parse_rule(body: object) -> LaunchRule:
    """Check an ``intercept`` block.

    Raises
    ------
    Refused
        ``artifact-invalid``, naming the field.
    """
    if not isinstance(body, Mapping) or not set(body) <= _FIELDS:
        raise _invalid("intercept", f"is not an object of {sorted(_FIELDS)}")
    kernel, digest, code = (body.get(name) for name in ("kernel", "source_digest", "code"))
    if not isinstance(kernel, str) or not _KERNEL.match(kernel):
        raise _invalid("kernel", "is not a kernel identity")
    if not isinstance(digest, str) or not _DIGEST.match(digest):
        raise _invalid("source_digest", "is not a sha256 digest")
    if code not in ("live", "artifact"):
        raise _invalid("code", "must be live or artifact")
    if body.get("grid", "kept") != "kept":
        raise _invalid("grid", "can only be 'kept'; a rule is the artifact's own 'grid'")
    dtypes = _names(body, "dtypes", lambda value: value in DTYPES)
    stores = _names(body, "stores", lambda value: value in ("write", "update"))
    if not stores or not stores.keys() <= dtypes.keys():
        raise _invalid("stores", "names no pointer, or one that is not in 'dtypes'")
    return LaunchRule(
        kernel=kernel,
        source_digest=digest,
        live=code == "live",
        axes={name: _shown(text) for name, text in _names(body, "axes", _is_text).items()},
        ints=_names(body, "ints", _is_text),
        numels=_names(body, "numels", _is_text),
        dtypes=dtypes,
        constexprs=_names(body, "constexprs", _is_plain),
        stores=stores,
        bind=_names(
            body, "bind", lambda value: isinstance(value, str) and bool(_NAME.match(value))
        ),
        keeps_grid="grid" in body,
    )


def key_reader(rule: LaunchRule, spec: Spec, kernel: Kernel) -> Callable[[LaunchCall], Key]:
    """Return a function that reads the lengths of the variable axes from a launch.

    The function raises ValueError or TypeError for a launch without such lengths.

    Raises
    ------
    Refused
        ``artifact-invalid`` if an axis has no rule, or the rule names what the kernel does not
        have.
    """
    if set(rule.axes) != set(spec.variable_axes):
        raise _invalid("axes", f"has no rule for each of {list(spec.variable_axes)}")
    order = [each.name for each in kernel.parameters]
    texts = [rule.axes[axis] for axis in spec.variable_axes]
    if all(text in order for text in texts):
        places = [order.index(text) for text in texts]

        def quick(call: LaunchCall) -> Key:
            values = call.values()
            return tuple([_length(values[place]) for place in places])

        return quick
    if all(text in GRID_NAMES for text in texts):
        dimensions = [GRID_NAMES.index(text) for text in texts]

        def of_grid(call: LaunchCall) -> Key:
            grid = call.grid_numbers()
            return tuple([grid[dimension] for dimension in dimensions])

        return of_grid
    names = known_names(kernel)
    evaluators = [parse_expression(text, names) for text in texts]

    def general(call: LaunchCall) -> Key:
        known = Known(call)
        try:
            return tuple([evaluate(known) for evaluate in evaluators])
        except Refused as error:
            raise ValueError(error.detail) from error

    return general


def known_names(kernel: Kernel) -> set[str]:
    names = [each.name for each in kernel.parameters]
    return {*names, *GRID_NAMES, *(f"numel_{name}" for name in names)}


class Known(dict[str, int]):
    """Values for expressions over a launch; computed when they are read."""

    __slots__ = ("_call",)

    def __init__(self, call: LaunchCall, fixed: Mapping[str, int] | None = None) -> None:
        super().__init__(fixed or {})
        self._call = call

    def __missing__(self, name: str) -> int:
        """Read a number of the launch; raises ValueError if it does not have that number."""
        call = self._call
        if name in GRID_NAMES:
            return call.grid_numbers()[GRID_NAMES.index(name)]
        wanted = name.removeprefix("numel_")
        for each, value in zip(call.kernel.parameters, call.values(), strict=True):
            if each.name == name:
                return _length(getattr(value, "value", value) if each.constexpr else value)
            if each.name == wanted and name != wanted and is_pointer(value):
                return _length(value.numel())
        raise ValueError(f"'{name}' is not a number of this launch")


def _length(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError("a length is not a whole number")
    return value


def _names(body: Mapping[str, Any], field: str, fits: Callable[[Any], bool]) -> dict[str, Any]:
    value = body.get(field, {})
    if not isinstance(value, Mapping) or len(value) > _MAX_ENTRIES:
        raise _invalid(field, f"is not an object of at most {_MAX_ENTRIES} entries")
    for name, each in value.items():
        if not isinstance(name, str) or not _NAME.match(name) or not fits(each):
            raise _invalid(field, f"has an invalid entry {str(name)[:80]!r}")
    return dict(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _shown(text: str) -> str:
    kind, found, name = text.partition(":")
    if not found or kind not in ("param", "grid"):
        return text
    return name if kind == "param" else f"grid_{name}"


def _is_plain(value: object) -> bool:
    return value is None or type(value) in (bool, int, float, str)


def _invalid(field: str, problem: str) -> Refused:
    return Refused("artifact-invalid", detail=f"artifact.json: intercept: '{field}' {problem}")
