"""One proposal with everything that the store of one machine knows of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import ValidationError

from retuned.adapters.approvals import Approvals, Identity
from retuned.contract import Solution
from retuned.local.context import RecordKind
from retuned.local.devices import said_beside
from retuned.local.people import OPEN, SWAPPED, doubts
from retuned.local.proving import Read
from retuned.ports import Event, Store
from retuned.stages.gate import DecisionKind, GateDecision
from retuned.stages.swap import SwapKind, SwapOrder
from retuned.stages.watch import EndToEndReport, WatchSample
from retuned.terminal.moments import short_id
from retuned.web.records import Act, CostBasis, Line, NodeRow, Person, ProposalDetails, Roofs, Row

_LINES = 400
"""Newest lines of a history that are shown."""
_SHOWN_WINDOWS = 3
"""Windows that are the present profile."""
_DETAIL = 600


def case_of(
    store: Store,
    row: Row,
    *,
    viewer: Person,
    evidence: Read,
    candidate: Solution | None,
    incumbent: Solution | None,
    roofs: Roofs | None,
    sample: WatchSample | None,
    fleet: CostBasis,
    gate: GateDecision | None,
) -> ProposalDetails:
    """Return the case of a proposal.

    Raises
    ------
    UnreadableInput
        If somebody's word cannot be understood: it may be a rejection.
    """
    id = row.name
    return ProposalDetails(
        row=row,
        acts=acts_in(row.phase),
        doubts=_doubts(row, viewer, gate),
        words=Approvals(store).decisions(id),
        document=evidence.document,
        doubt=evidence.doubt,
        candidate=candidate,
        incumbent=incumbent,
        places=tuple(_places(store, id)),
        lines=tuple(_line(event) for event in store.events(id=id, limit=_LINES)),
        sample=sample,
        end_to_end=_end_to_end(store, id),
        roofs=roofs,
        beside=said_beside(store, RecordKind.EXPERIMENT, row.proposal.experiment),
        fleet=fleet,
        commands=tuple(_commands(row)),
    )


def acts_in(phase: str) -> frozenset[Act]:
    """Return what can mean something in a phase.

    Examples
    --------
    >>> sorted(acts_in("promoted")), sorted(acts_in("rejected"))
    ([<Act.ABORT: 'abort'>, <Act.ROLLBACK: 'rollback'>], [])
    """
    found: set[Act] = set()
    if phase == "awaiting":
        found |= {Act.APPROVE, Act.BREAK_GLASS}
    if phase in OPEN:
        found |= {Act.REJECT, Act.ABORT}
    if phase in SWAPPED:
        found |= {Act.ROLLBACK, Act.ABORT}
    return frozenset(found)


def fleet_of(store: Store, *, gpus: int, usd_per_gpu_hour: float | None) -> CostBasis:
    """Return what hours are reckoned with, from the newest windows."""
    busy = []
    for stored in store.page(
        RecordKind.WINDOW, phases=("judged", "baseline", "new"), limit=_SHOWN_WINDOWS
    ):
        ratio = _busy(stored.body.get("profile"))
        if ratio is not None:
            busy.append(ratio)
    return CostBasis(
        gpus=gpus,
        busy_ratio=sum(busy) / len(busy) if busy else None,
        usd_per_gpu_hour=usd_per_gpu_hour,
    )


def _busy(profile: object) -> float | None:
    """Return the share of traced time in which kernels ran; read without all of the profile."""
    if not isinstance(profile, Mapping):
        return None
    observed, stats = profile.get("observed_ns"), profile.get("stats")
    if not isinstance(observed, int) or observed <= 0 or not isinstance(stats, list):
        return None
    spent = sum(int(stat.get("gpu_time_ns", 0)) for stat in stats if isinstance(stat, Mapping))
    return min(1.0, spent / observed)


def _doubts(row: Row, viewer: Person, gate: GateDecision | None) -> Mapping[Act, tuple[str, ...]]:
    if gate is None:
        return {}
    who = Identity(user=viewer.user, groups=viewer.groups)
    return {
        act: doubts(row.proposal, gate, who, comment="-", kind=kind)
        for act, kind in (
            (Act.APPROVE, DecisionKind.APPROVE),
            (Act.BREAK_GLASS, DecisionKind.BREAK_GLASS),
        )
    }


def _places(store: Store, proposal: str) -> Iterator[NodeRow]:
    for stored in store.list(RecordKind.ORDER, proposal=proposal):
        try:
            order = SwapOrder.model_validate(stored.body)
        except ValidationError:
            continue
        back = order.kind is SwapKind.ROLLBACK
        to = short_id(order.artifact) if order.artifact else "the original"
        yield NodeRow(
            name=order.target,
            told=f"go back to {to}" if back else f"swap in {to}",
            done=stored.phase in ("done", "past"),
            since=stored.created_at,
            epoch=order.epoch,
        )


def _line(event: Event) -> Line:
    detail = ", ".join(f"{key}={value}" for key, value in event.detail.items() if value)
    return Line(at=event.at, who=event.who, what=event.what, detail=detail[:_DETAIL])


def _end_to_end(store: Store, proposal: str) -> EndToEndReport | None:
    stored = store.get(RecordKind.END_TO_END, proposal)
    if stored is None or not stored.body.get("report"):
        return None
    try:
        return EndToEndReport.model_validate(stored.body["report"])
    except ValidationError:
        return None


def _commands(row: Row) -> Iterator[str]:
    name, artifact = short_id(row.name), row.proposal.artifact
    if row.phase == "awaiting":
        yield f"retuned approve {name} --digest {artifact}"
        yield f"retuned reject {name}"
    elif row.phase in SWAPPED:
        yield f"retuned rollback {name}"
