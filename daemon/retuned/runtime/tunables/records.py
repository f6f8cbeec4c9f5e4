"""Records of tunables: tables, size classes, argument descriptions. Pure.

A table maps ranges of a launch's axes to configurations. Its text is canonical JSON; the daemon
signs it. A launch that no rule matches runs what the server chose.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from retuned.runtime.schema import Refused

MAX_RULES = 64
MAX_TEXT_BYTES = 32 << 10
MAX_CAPTURES = 64
MAX_INT = 2**53
CAPTURE_SHARE = 0.2
"""Most time of captures beside requests over elapsed time, where a table does not say."""
_FIELDS = frozenset(
    {
        *("format", "tunable", "family", "source", "rules", "before"),
        *("captures", "capture_after_s", "capture_share"),
    }
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
_AXIS = re.compile(r"[a-z_]{1,32}\Z")

Axes = Mapping[str, int]
Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """A configuration for the launches whose axes lie in all ranges."""

    when: tuple[tuple[str, int, int], ...]
    """Axis, least and greatest value; an axis that is absent may have any value."""
    config: Config = field(hash=False)

    def matches(self, axes: Axes) -> bool:
        return all(low <= axes.get(name, -1) <= high for name, low, high in self.when)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """A captured batch size that is captured a second time with the table."""

    size: int
    """Tokens."""
    axes: Axes = field(hash=False)
    """Values that a capture does not show, such as the longest sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A parsed table."""

    tunable: str
    family: str
    source: str
    """Digest of the kernel's source that the table was made for."""
    rules: tuple[Rule, ...]
    captures: tuple[Capture, ...]
    before: str | None
    """Digest of the table that it replaces; None is the original."""
    digest: str
    capture_after_s: int | None = None
    """How long captures wait for a moment without requests, seconds; None: without end."""
    capture_share: float = CAPTURE_SHARE
    """Most time of captures beside requests over elapsed time."""

    def choose(self, axes: Axes) -> Config | None:
        """Return the configuration of the first rule that matches; None without one."""
        for rule in self.rules:
            if rule.matches(axes):
                return rule.config
        return None


def canonical(value: object) -> str:
    """Return JSON text that is the same for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest_of_text(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def tunable_id(family: str, *, module: str, kernel: str, geometry: Mapping[str, Any]) -> str:
    """Return the id of a tunable; equal over restarts of the same server.

    Examples
    --------
    >>> tunable_id("moe", module="m", kernel="fused_moe_kernel", geometry={"E": 8})
    'tunable:moe:fused_moe_kernel:9212b0cc'
    """
    named = canonical([family, module, kernel, geometry])
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", kernel)[:64]
    return f"tunable:{family}:{name}:{hashlib.sha256(named.encode()).hexdigest()[:8]}"


def bucket(value: int) -> int:
    """Return the power of two that is at least a value: the upper end of its size class.

    Examples
    --------
    >>> [bucket(n) for n in (0, 1, 3, 4, 8193)]
    [0, 1, 4, 4, 16384]
    """
    return 1 << (value - 1).bit_length() if value > 0 else 0


def parse_table(body: Mapping[str, Any], *, text: str) -> Table:
    """Parse the text of a change.

    Raises
    ------
    Refused
        ``table-invalid``.
    """
    if len(text) > MAX_TEXT_BYTES:
        raise _invalid(f"has more than {MAX_TEXT_BYTES} bytes")
    unknown = sorted(set(body) - _FIELDS)
    if unknown or body.get("format") != "table":
        raise _invalid(f"has unknown fields {unknown[:4]} or another format")
    names = {name: body.get(name) for name in ("tunable", "family", "source")}
    for name, value in names.items():
        if not isinstance(value, str) or not 0 < len(value) <= 256:
            raise _invalid(f"'{name}' is not text of 1 to 256 characters")
    before = body.get("before")
    if before is not None and not (isinstance(before, str) and _DIGEST.match(before)):
        raise _invalid("'before' is neither a digest nor null")
    after_s = body.get("capture_after_s")
    if after_s is not None and not _is_number(after_s):
        raise _invalid("'capture_after_s' is neither a number nor null")
    share = body.get("capture_share", CAPTURE_SHARE)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0.01 <= share <= 1.0:
        raise _invalid("'capture_share' is not between 0.01 and 1")
    return Table(
        tunable=str(names["tunable"]),
        family=str(names["family"]),
        source=str(names["source"]),
        rules=tuple(_rule(each) for each in _list(body, "rules", most=MAX_RULES)),
        captures=tuple(_capture(each) for each in _list(body, "captures", most=MAX_CAPTURES)),
        capture_after_s=after_s,
        capture_share=float(share),
        before=before,
        digest=digest_of_text(text),
    )


def _rule(body: object) -> Rule:
    if not isinstance(body, dict) or set(body) != {"when", "config"}:
        raise _invalid("a rule is not an object with 'when' and 'config'")
    when, config = body["when"], body["config"]
    if not isinstance(when, dict) or not isinstance(config, dict) or not config:
        raise _invalid("'when' and 'config' of a rule must be objects, 'config' not empty")
    ranges = []
    for name, pair in sorted(when.items()):
        fits = isinstance(pair, list) and len(pair) == 2 and all(map(_is_number, pair))
        if not _AXIS.match(name) or not fits or pair[0] > pair[1]:
            raise _invalid(f"'{name:.32}' of a rule is not an ascending range")
        ranges.append((name, pair[0], pair[1]))
    return Rule(tuple(ranges), config)


def _capture(body: object) -> Capture:
    if not isinstance(body, dict) or set(body) - {"size", "axes"}:
        raise _invalid("a capture is not an object with 'size' and 'axes'")
    size, axes = body.get("size"), body.get("axes", {})
    fits = isinstance(axes, dict) and all(
        _AXIS.match(name) and _is_number(value) for name, value in axes.items()
    )
    if not _is_number(size) or not size or not fits:
        raise _invalid("'size' and 'axes' of a capture must be numbers")
    return Capture(size=size, axes=axes)


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_INT


def _list(body: Mapping[str, Any], name: str, *, most: int) -> list[Any]:
    found = body.get(name, [])
    if not isinstance(found, list) or len(found) > most:
        raise _invalid(f"'{name}' is not a list of at most {most}")
    return found


def _invalid(problem: str) -> Refused:
    return Refused("table-invalid", detail=f"the table {problem}")
