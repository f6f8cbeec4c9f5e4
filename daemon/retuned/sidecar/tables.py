"""Tables in a pod: what orders about tunables put in force, from stored orders and fetched folders.

Both are on the pod's disk, so a sidecar that restarts finds them again. A rollback needs no folder:
the order names what comes back.
"""

from __future__ import annotations

from collections.abc import Mapping

from retuned.node.order_store import latest, newest_orders
from retuned.ports import Store
from retuned.runtime.tunables.records import digest_of_text
from retuned.sidecar.artifacts import Artifacts
from retuned.stages.proposal import is_tunable, rollback_text
from retuned.stages.swap import SwapKind, SwapOrder
from retuned.tuned_files.records import TABLE, FileChange, Format


class OrderedTables:
    """The `Changes` of a sidecar's swapper.

    Parameters
    ----------
    store
        Orders.
    artifacts
        Fetched folders.
    """

    def __init__(self, store: Store, artifacts: Artifacts) -> None:
        self._store = store
        self._artifacts = artifacts

    def of(self, proposal: str) -> FileChange | None:
        """Return what the newest order of a proposal changes; None if it swaps a kernel."""
        order = self._newest(proposal)
        if order is None or not is_tunable(order.definition):
            return None
        text = None
        if order.kind is SwapKind.SWAP and order.artifact is not None:
            text = self._artifacts.text(order.artifact)
        if text is None:
            text = rollback_text(order.definition, before=order.artifact)
        return FileChange(
            definition=order.definition,
            format=TABLE,
            digest=digest_of_text(text),
            text=text,
            path="",
        )

    def known(self) -> Mapping[str, Format]:
        """Return the tunables that had an order."""
        return dict.fromkeys(filter(is_tunable, latest(self._store)), TABLE)

    def _newest(self, proposal: str) -> SwapOrder | None:
        kept = [*latest(self._store).values(), *newest_orders(self._store)]
        mine = [each.order for each in kept if each.order.proposal == proposal]
        return max(mine, key=lambda order: order.epoch, default=None)
