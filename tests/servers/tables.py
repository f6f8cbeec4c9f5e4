"""Tables for tunables that a hook found, put in force as the runtime does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retuned.runtime.core.orders import CheckRates
from retuned.runtime.tunables.records import Rule, Table
from retuned.runtime.tunables.state import Registry, Tunable


def only(registry: Registry) -> Tunable:
    """Return the one tunable that was found."""
    (tunable,) = registry
    return tunable


def put(tunable: Tunable, config: Mapping[str, Any], *, rates: CheckRates | None = None) -> None:
    """Verify a configuration and put a table in force that has it for all launches.

    Parameters
    ----------
    rates
        How its launches are checked; None checks none.
    """
    tunable.check(config)
    table = Table(
        tunable=tunable.id,
        family=tunable.family,
        source=tunable.source,
        rules=(Rule((), dict(config)),),
        captures=(),
        before=None,
        digest="sha256:" + "0" * 64,
    )
    tunable.put(table, rates=rates)
