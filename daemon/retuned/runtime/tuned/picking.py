"""What a server picks, beside what it should: asked of its own lookup, compared here."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from retuned.runtime.tuned.servers import Server


def picks_of(server: Server, probes: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    """Return what the server picks at some sizes; nothing where it cannot be asked."""
    pick = server.pick
    return {} if pick is None else {probe: pick(probe) for probe in probes}


def wrong_picks(server: Server, expected: Mapping[Hashable, Any]) -> list[str]:
    """Return where the server picks something else than a file says; defaults are its own."""
    known = {probe: what for probe, what in expected.items() if what is not None}
    return [
        f"{probe}: {picked!r:.100} for {known[probe]!r:.100}"
        for probe, picked in picks_of(server, known).items()
        if not server.matches(known[probe], picked)
    ]


def changed_picks(server: Server, before: Mapping[Hashable, Any]) -> list[str]:
    """Return where the server picks something else than before."""
    return [
        f"{probe}: {picked!r:.100}, before {before[probe]!r:.100}"
        for probe, picked in picks_of(server, before).items()
        if not _same_pick(picked, before[probe])
    ]


def _same_pick(one: Any, other: Any) -> bool:  # noqa: ANN401 - the server's
    """Compare what a server picked twice; what pandas calls missing is no difference."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same_pick(one[k], other[k]) for k in one)
    return bool(one == other) or (one != one and other != other)
