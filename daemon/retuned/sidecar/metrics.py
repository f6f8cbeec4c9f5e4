"""What a pod's orders come to, as numbers."""

from __future__ import annotations

from collections.abc import Sequence

from retuned.node.order_store import latest
from retuned.sidecar.context import Context
from retuned.telemetry.labels import SwapLabels, failing_rows


def stuck(ctx: Context) -> None:
    """Show the slots whose rollback to the original fails, while their orders are in force."""
    refused = ctx.standing.stuck
    orders = [kept.order for kept in latest(ctx.store).values()] if refused else []
    found: dict[SwapLabels, Sequence[str]] = {
        SwapLabels(
            namespace="",  # the scrape adds it, as for all metrics of a pod
            proposal="",
            target=ctx.target.rpartition("/")[2],
            kernel=order.definition,
        ): (ctx.pod.name,)
        for order in orders
        if refused.get(order.definition) == order.id
    }
    ctx.telemetry.table("retuned_swap_rollback_failed", failing_rows(found))
