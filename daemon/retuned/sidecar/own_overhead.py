"""What Retuned costs the server of a pod: measured where the operator asks, followed elsewhere.

The measurement is run by `retuned.node.own_overhead`, on the thread of live proofs, so that neither
runs beside the other. The operator computes its result again from the pairs.
"""

from __future__ import annotations

import threading

from retuned.api.agent import PodOverhead
from retuned.node.order_store import latest
from retuned.node.own_overhead import pairs_of
from retuned.sidecar.context import Context


def keep_up(ctx: Context, stop: threading.Event, *, timed: bool) -> None:
    """Measure when it is due; where another pod measures, use the share of its measurement.

    Parameters
    ----------
    timed
        Whether steps of the server can be timed; without that the server is not asked again.
    """
    keeper = ctx.own_overhead
    if keeper is None:
        return
    if timed:
        keeper.keep_up(stop, wanted=lambda: _is_wanted(ctx))
    asked = ctx.standing.overhead
    if asked is not None and not asked.measure:
        keeper.follow(asked.shares.get(ctx.environment, 1.0))


def reported(ctx: Context, *, most_pairs: int) -> PodOverhead | None:
    """Return the last measurement while the operator asks for it and does not have it.

    Parameters
    ----------
    most_pairs
        Room for pairs in this report; a measurement that is larger waits for the next.
    """
    asked = ctx.standing.overhead
    if asked is None or not asked.measure:
        return None
    last = pairs_of(ctx.store)
    if last is None or last.at == asked.heard or len(last.claim.pairs) > most_pairs:
        return None
    return PodOverhead(at=last.at, engine=last.engine, claim=last.claim)


def _is_wanted(ctx: Context) -> bool:
    """Whether the operator asks this pod, and nothing else is measured or in force in it."""
    asked = ctx.standing.overhead
    if asked is None or not asked.measure or ctx.standing.proofs or ctx.standing.boot is not None:
        return False
    return all(kept.order.artifact is None for kept in latest(ctx.store).values())
