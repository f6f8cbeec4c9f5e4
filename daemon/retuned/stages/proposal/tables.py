"""Tables of tunables: the text that a win puts in force, and what it may hold. Pure.

The daemon of one machine and the operator make the text of a table here, from the verified variant,
the guard of its verdict, the rules in force and what the server launches. A text has the rules of
the win first, then those in force: the first rule that matches a launch is used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from retuned.contract import Digest, Guard, Language, Solution, SourceFile, TrustClass
from retuned.errors import CandidateError
from retuned.runtime.schema import Refused
from retuned.runtime.tunables.records import (
    CAPTURE_SHARE,
    MAX_CAPTURES,
    MAX_RULES,
    Table,
    canonical,
    digest_of_text,
    parse_table,
)
from retuned.runtime.tuned_files.strict import json_object
from retuned.stages.hypothesis import TABLE_STRUCTURE
from retuned.stages.proposal.propose import Refusal, RefusalReason

TUNABLE = "tunable:"
"""Begin of every tunable's id."""
_FILE = "table.json"
_FORMAT = "table"

Rule = Mapping[str, Any]
"""``when``, ranges of axes, and ``config``."""


class LaunchedClass(Protocol):
    """One size class that a server launches."""

    @property
    def axes(self) -> Mapping[str, int]: ...

    @property
    def captured(self) -> int:
        """Launches during captures of graphs."""
        ...

    @property
    def sizes(self) -> Sequence[int]:
        """Exact sizes on the first axis of captured launches."""
        ...


class Launched(Protocol):
    """What a server launches now of one tunable."""

    @property
    def family(self) -> str: ...

    @property
    def module(self) -> str: ...

    @property
    def source(self) -> str:
        """Digest of the kernel's source."""
        ...

    @property
    def ways(self) -> Mapping[str, str]:
        """``on`` or a reason code, by way of change."""
        ...

    @property
    def asked(self) -> Sequence[LaunchedClass]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TableText:
    """The text of a table; the runtime parses it, and it is signed."""

    definition: str
    digest: Digest
    """Of the text."""
    text: str


def is_tunable(definition: str) -> bool:
    return definition.startswith(TUNABLE)


def variant_of(definition: str, rules: Sequence[Rule], *, author: str, **about: object) -> Solution:
    """Return a table as a variant; the same rules give the same digest.

    `about` names what the server chose besides, for an incumbent.
    """
    text = json.dumps({"rules": list(rules), **about}, indent=1, sort_keys=True)
    return Solution(
        name=f"{definition}.table"[:128],
        definition=definition,
        language=Language.LIBRARY,
        entry="table",
        sources=(SourceFile(path=_FILE, content=text),),
        structure=TABLE_STRUCTURE,
        trust=TrustClass.PARAMETERS,
        author=author,
    )


def verified(solution: Solution, definition: str) -> Solution:
    """Return a table that a pod delivered, made again from its rules alone.

    Raises
    ------
    CandidateError
        ``not-a-table`` if it has anything besides rules, or is of another tunable.
    """
    again = variant_of(definition, rules_of(solution), author="search")
    same = (again.digest, again.structure) == (solution.digest, solution.structure)
    if not same or solution.trust is not TrustClass.PARAMETERS:
        detail = f"{solution.name} has more than the rules of a table of {definition}"
        raise CandidateError("not-a-table", detail=detail)
    return again


def rules_of(solution: Solution) -> list[dict[str, Any]]:
    """Return the rules of a variant.

    Raises
    ------
    CandidateError
        ``not-a-table``.
    """
    try:
        rules = json_object(solution.sources[0].content)["rules"]
        found = [{"when": dict(r["when"]), "config": dict(r["config"])} for r in rules]
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise CandidateError("not-a-table", detail=f"{solution.name}: {error!r:.200}") from error
    if len(found) > MAX_RULES:
        raise CandidateError("not-a-table", detail=f"{len(found)} rules are more than {MAX_RULES}")
    return found


def table_of(
    solution: Solution,
    guard: Guard,
    *,
    definition: str,
    measured_source: str,
    launched: Launched,
    in_force: Sequence[Rule],
    before: Digest | None,
    recapture: bool,
    recapture_after: timedelta | None = None,
    capture_share: float = CAPTURE_SHARE,
) -> TableText | Refusal:
    """Return the text that a win puts in force, or why it has none.

    Parameters
    ----------
    solution, guard
        The variant that won, and the launches for which it did.
    definition
        The tunable.
    measured_source
        Digest of the kernel's source that was measured.
    launched
        What the server launches now.
    in_force, before
        Rules of the table in force and its digest; none and None for the server's own choice.
    recapture
        Whether the policy allows captures of graphs.
    recapture_after
        How long they wait for a moment without requests; None is without end.
    capture_share
        Most time of captures beside requests over elapsed time.
    """
    if launched.source != measured_source:
        detail = f"{launched.module} has another source than was measured"
        return Refusal(reason=RefusalReason.SOURCE_DIFFERS, detail=detail[:1000])
    try:
        rules = within(rules_of(solution), guard)
    except CandidateError as error:
        return Refusal(reason=RefusalReason.NOT_A_TABLE, detail=error.detail[:1000])
    if not rules:
        detail = f"no rule lies within {guard}"
        return Refusal(reason=RefusalReason.NOTHING_TO_CHANGE, detail=detail)
    rules = [*rules, *map(dict, in_force)]  # the first that matches is used
    if len(rules) > MAX_RULES:
        detail = f"{len(rules)} rules, with those in force, are more than {MAX_RULES}"
        return Refusal(reason=RefusalReason.NOT_A_TABLE, detail=detail)
    body: dict[str, Any] = {
        "format": _FORMAT,
        "tunable": definition,
        "family": launched.family,
        "source": measured_source,
        "rules": rules,
        "captures": captures_of(launched, rules) if recapture else [],
        "before": before,
    }
    if body["captures"] and recapture_after is not None:
        body["capture_after_s"] = round(recapture_after.total_seconds())
        body["capture_share"] = capture_share
    try:
        text = canonical(body)
        parse_table(body, text=text)
    except (Refused, ValueError) as error:
        return Refusal(reason=RefusalReason.NOT_A_TABLE, detail=str(error)[:1000])
    return TableText(definition=definition, digest=digest_of_text(text), text=text)


def within(rules: Sequence[Rule], guard: Guard) -> list[dict[str, Any]]:
    """Return the parts of rules that a guard allows.

    Raises
    ------
    CandidateError
        ``not-a-table`` if a range is not a pair of numbers.

    Examples
    --------
    >>> rules = [{"when": {"rows": [1, 64]}, "config": {"a": 1}},
    ...     {"when": {"rows": [65, 128]}, "config": {"a": 2}}]
    >>> within(rules, Guard(bounds={"rows": (33, 64)}))
    [{'when': {'rows': [33, 64]}, 'config': {'a': 1}}]
    """
    kept = []
    try:
        for rule in rules:
            when = {name: list(pair) for name, pair in rule["when"].items()}
            for name, (low, high) in guard.bounds.items():
                first, last = when.get(name, [low, high])
                when[name] = [max(first, low), min(last, high)]
            if all(first <= last for first, last in when.values()):
                kept.append({"when": when, "config": dict(rule["config"])})
    except (TypeError, ValueError) as error:
        raise CandidateError("not-a-table", detail=f"a range: {error!r:.200}") from error
    return kept


def captures_of(launched: Launched, rules: Sequence[Rule]) -> list[dict[str, Any]]:
    """Return the captured batch sizes of the size classes that rules are for."""
    if launched.ways.get("recapture") != "on" or launched.family == "autotune":
        return []  # the size classes of an autotuner do not name batch sizes
    found: dict[int, dict[str, Any]] = {}
    for each in launched.asked:
        if not each.captured or not any(_matches(rule, each.axes) for rule in rules):
            continue
        axes = {"longest": each.axes["longest"]} if "longest" in each.axes else {}
        for size in each.sizes:
            found.setdefault(size, {"size": size, "axes": axes})
    return [found[size] for size in sorted(found)][:MAX_CAPTURES]


def _matches(rule: Rule, axes: Mapping[str, int]) -> bool:
    return all(low <= axes.get(name, -1) <= high for name, (low, high) in rule["when"].items())


def read_table(text: str) -> Table:
    """Return a table from its text, with the runtime's rules.

    Raises
    ------
    CandidateError
        ``table-invalid``.
    """
    try:
        return parse_table(json_object(text), text=text)
    except Refused as error:
        raise CandidateError(error.reason, detail=error.detail) from error
    except ValueError as error:
        raise CandidateError("table-invalid", detail=str(error)[:300]) from error


def rules_in(text: str) -> list[dict[str, Any]]:
    """Return the rules of a table's text."""
    return list(json.loads(text)["rules"])


def proves(text: str, solution: Solution, guard: Guard, *, in_force: Sequence[Rule]) -> bool:
    """Whether a text has the rules that a variant won within a guard, then those in force, alone.

    Raises
    ------
    CandidateError
        ``not-a-table`` if the variant is not a table.
    """
    wanted = [*within(rules_of(solution), guard), *map(dict, in_force)]
    return canonical(rules_in(text)) == canonical(wanted)


def rollback_text(definition: str, *, before: Digest | None) -> str:
    """Return a text for a rollback to a table, or to the original with None.

    A rollback names the tunable and what comes back. So it needs no stored text, and no signature.
    """
    body = {"format": _FORMAT, "tunable": definition, "family": "none", "source": "none"}
    return canonical({**body, "rules": [], "captures": [], "before": before})
