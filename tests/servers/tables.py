"""Tables for tunables that a hook found, put in force as the runtime does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retuned.runtime.tunables.records import Rule, Table
from retuned.runtime.tunables.state import Registry, Tunable


def only(registry: Registry) -> Tunable:
    """Return the one tunable that was found."""
    (tunable,) = registry
    return tunable


def put(tunable: Tunable, config: Mapping[str, Any]) -> None:
    """Verify a configuration and put a table in force that has it for all launches."""
    tunable.check(config)
    tunable.table = Table(
        tunable=tunable.id,
        family=tunable.family,
        source=tunable.source,
        rules=(Rule((), dict(config)),),
        captures=(),
        before=None,
        digest="sha256:" + "0" * 64,
    )
