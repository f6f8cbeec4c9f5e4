"""Order checks: is an order for this server, is it new, and may it be committed now? Pure.

The control plane names the same orders repeatedly, and may be late. A repeated order changes
nothing. An order out of sequence is refused; the control plane then issues a later epoch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import StrEnum

from retuned.stages.swap import SwapKind, SwapOrder


class Refusal(StrEnum):
    """Stable codes for an order that is not committed here."""

    OTHER_TARGET = "other-target"
    INVALID = "order-invalid"
    ALTERED = "order-altered"
    OUT_OF_EPOCH = "out-of-epoch"
    FAILED_HERE = "failed-here"


def judge_order(
    order: SwapOrder,
    *,
    target: str,
    same: SwapOrder | None,
    newest: SwapOrder | None,
    failed: Collection[str],
) -> Refusal | None:
    """Return why an order is not taken; None if it is, or was taken before.

    Parameters
    ----------
    order
        As the control plane named it.
    target
        Target of this server.
    same
        The order of this id that was taken before; None if there is none.
    newest
        The newest order of the slot that is in force or may come into force; None if there is none.
    failed
        Proposals whose swap did harm here, or was refused.

    Examples
    --------
    >>> from retuned.contract import Guard
    >>> order = SwapOrder(id="x", kind="swap", proposal="p", target="ns/t", definition="d",
    ...     artifact="sha256:" + "a" * 64, previous=None, guard=Guard(), epoch=4)
    >>> def said(order, **known):
    ...     facts = {"target": "ns/t", "same": None, "newest": None, "failed": ()} | known
    ...     return judge_order(order, **facts)
    >>> said(order), said(order, same=order, newest=order)
    (None, None)
    >>> [str(said(order, target="ns/u")), str(said(order, failed=["p"]))]
    ['other-target', 'failed-here']
    >>> later = order.model_copy(update={"epoch": 5})
    >>> str(said(order, newest=later)), str(said(order, same=later))
    ('out-of-epoch', 'order-altered')
    """
    if order.target != target:
        return Refusal.OTHER_TARGET
    if order.kind is SwapKind.SWAP and order.artifact is None:
        return Refusal.INVALID
    if same is not None:
        return None if _what(same) == _what(order) else Refusal.ALTERED
    if newest is not None and order.epoch <= newest.epoch:
        return Refusal.OUT_OF_EPOCH
    if order.kind is SwapKind.SWAP and order.proposal in failed:
        return Refusal.FAILED_HERE
    return None


def _what(order: SwapOrder) -> SwapOrder:
    """Return an order without its spread: a policy may change that, and the first one stays."""
    return SwapOrder(
        id=order.id,
        kind=order.kind,
        proposal=order.proposal,
        target=order.target,
        definition=order.definition,
        artifact=order.artifact,
        previous=order.previous,
        previous_guard=order.previous_guard,
        guard=order.guard,
        epoch=order.epoch,
    )


def stands_behind(order: SwapOrder, named: Iterable[SwapOrder]) -> bool:
    """Whether the control plane still names what is in force in a slot.

    The same proposal under any epoch, or the same artifact under another proposal, is sufficient:
    between an order and its rollback the two sides may know different orders.

    Parameters
    ----------
    order
        In force here.
    named
        Everything that the control plane names for this server.
    """
    return order.artifact is None or any(
        each.definition == order.definition
        and (each.proposal == order.proposal or each.artifact == order.artifact)
        for each in named
    )


def may_begin(order: SwapOrder, *, named: bool, silent_s: float, fresh_s: float) -> bool:
    """Whether an order may be committed now.

    A rollback always may. A swap may while the control plane names it and has answered recently: a
    person may have stopped it since, or a window may have closed.
    """
    return order.kind is SwapKind.ROLLBACK or (named and silent_s <= fresh_s)
