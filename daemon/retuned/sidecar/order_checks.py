"""Is an order for this pod, new, and to be carried out? Pure.

The operator says the same again and again, and may say it late. What is replayed changes nothing,
what is out of sequence is refused and said so: the operator then orders anew, with a later epoch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import StrEnum

from retuned.stages.swap import SwapKind, SwapOrder


class Refusal(StrEnum):
    """Stable codes for an order that is not carried out here."""

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
    """Return why an order is not taken; None where it is, or was.

    Parameters
    ----------
    order
        What the operator said.
    target
        This pod's.
    same
        The order of this id that was taken before; None where there is none.
    newest
        The newest order of the slot that is in force or on its way here; None where there is none.
    failed
        Proposals whose swap did harm here or was refused.

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
    """Return an order without how it spreads: a policy may change that, and the first stays."""
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
    """Whether the operator still says something of what is in force in a slot.

    Its own name, its proposal under whatever epoch, or its artifact under another name will do:
    between an order and the way back from it the two sides may know different ones.

    Parameters
    ----------
    order
        In force here.
    named
        All that the operator says this pod is to have.
    """
    return order.artifact is None or any(
        each.definition == order.definition
        and (each.proposal == order.proposal or each.artifact == order.artifact)
        for each in named
    )


def may_begin(order: SwapOrder, *, named: bool, silent_s: float, fresh_s: float) -> bool:
    """Whether an order may be carried out now.

    A way back always may. A swap may while the operator names it and was heard not long ago:
    people may have stopped it since, or a window may have closed.
    """
    return order.kind is SwapKind.ROLLBACK or (named and silent_s <= fresh_s)
