"""The facts of the review page on one machine: the store that daemon and commands share.

One proposal with everything that the store of one machine knows of it.

What the review page knows of one machine besides its store: its place, its GPUs, its server.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from retuned.api.proposal import ProposalPhase
from retuned.contract import Digest, Record, Solution
from retuned.errors import TemporaryError, UnreadableInput
from retuned.ports import Clock, Event, Store, Stored, Verifier
from retuned.review.records import (
    Act,
    CostBasis,
    DriftLine,
    Line,
    NodeRow,
    Overview,
    Person,
    ProposalDetails,
    ResultPage,
    ReviewPhase,
    Roofs,
    Row,
    Slice,
    Window,
    acts_in,
    review_phase_of,
)
from retuned.review.records import gate_of as gate_facts
from retuned.stages.drift import DriftAction, DriftReport
from retuned.stages.gate import DecisionKind, GateDecision
from retuned.stages.gate.description import plan_words
from retuned.stages.profile import WorkloadProfile
from retuned.stages.proposal import Proposal
from retuned.stages.swap import SwapKind, SwapOrder
from retuned.stages.verdict import EvidenceDocument
from retuned.stages.watch import Account, EndToEndReport, WatchSample
from retuned.stages.watch.proof import ProofState
from retuned.standalone import savings
from retuned.standalone.context import RecordKind
from retuned.standalone.decisions import (
    ASKS,
    SWAPPED,
    asked_for,
    gate_of,
    read_proposal,
    warnings,
)
from retuned.standalone.evidence import Read, read
from retuned.standalone.findings import found_solution
from retuned.standalone.metrics import said_beside
from retuned.standalone.proofs.server_pace import forecast_of
from retuned.standalone.records import CARRIED_OUT
from retuned.store.approvals import Approvals, Identity
from retuned.store.lock import daemon_runs
from retuned.text import short_id

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
        If a decision is not valid: it may be a rejection.
    """
    id = row.name
    return ProposalDetails(
        row=row,
        acts=acts_in(ProposalPhase(row.phase)),
        doubts=_warnings(row, viewer, gate),
        words=Approvals(store).decisions(id),
        document=evidence.document,
        doubt=evidence.doubt,
        candidate=candidate,
        incumbent=incumbent,
        places=tuple(_places(store, id)),
        lines=tuple(_line(event) for event in store.events(id=id, limit=_LINES)),
        sample=sample,
        end_to_end=_end_to_end(store, id),
        forecast=forecast_of(store, id),
        live_proof=_live_proof(store, id),
        roofs=roofs,
        beside=said_beside(store, RecordKind.EXPERIMENT, row.proposal.experiment),
        fleet=fleet,
        commands=tuple(_commands(row)),
        plan=plan_words(gate),
    )


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


def _warnings(row: Row, viewer: Person, gate: GateDecision | None) -> Mapping[Act, tuple[str, ...]]:
    if gate is None:
        return {}
    who = Identity(user=viewer.user, groups=viewer.groups)
    return {
        act: warnings(row.proposal, gate, who, comment="-", kind=kind)
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
            done=stored.phase in CARRIED_OUT,
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


def _live_proof(store: Store, proposal: str) -> ProofState | None:
    stored = store.get(RecordKind.LIVE_PROOF, proposal)
    if stored is None:
        return None
    try:
        return ProofState.model_validate(stored.body.get("state"))
    except ValidationError:
        return None


def _commands(row: Row) -> Iterator[str]:
    name, artifact = short_id(row.name), row.proposal.artifact
    if row.phase in ASKS:
        yield f"retuned approve {name} --digest {artifact}"
        yield f"retuned reject {name}"
    elif row.phase in SWAPPED:
        yield f"retuned rollback {name}"


_ASKED_AGAIN_S = 1.0
_AWAY_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What the page knows besides the store."""

    place: str
    """What this installation is called."""
    folder: Path
    """The state folder."""
    gpus: int
    """Accelerators that the server uses."""
    usd_per_gpu_hour: float | None
    """Price of an hour; None if not set."""
    incumbent: Callable[[str], Solution | None] = lambda _: None
    """Variant that the server comes with, by kernel; None if unknown."""
    roofs: Callable[[Proposal, Sequence[Mapping[str, int]], str], Roofs | None] = (
        lambda _proposal, _shapes, _arch: None
    )
    """Roofs of an architecture for some shapes; None if unknown."""
    samples: Callable[[], Sequence[WatchSample]] = lambda: ()
    """What the server counts, per slot."""


class ServerStatusCache:
    """Asks the server at most once a second for all readers, and less often if it does not answer.

    Parameters
    ----------
    ask
        Reads the server's status; it may take seconds if the server hangs.
    clock
        Time.
    """

    def __init__(self, ask: Callable[[], Sequence[WatchSample]], *, clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._again_s = float("-inf")
        self._said: Sequence[WatchSample] = ()

    def __call__(self) -> Sequence[WatchSample]:
        """Return the newest answer; nothing where there was none."""
        now_s = self._clock.monotonic_s()
        if now_s < self._again_s:
            return self._said
        self._again_s = now_s + _ASKED_AGAIN_S
        try:
            self._said = self._ask()
        except TemporaryError:
            self._said, self._again_s = (), now_s + _AWAY_S
        return self._said


STANDINGS: Mapping[str, ReviewPhase] = {str(each): review_phase_of(each) for each in ProposalPhase}
_ORDERS = ("new", "sent", "done", "refused", "superseded", "undone")
_DRIFTS = ("new", "explained", "answered", "noted")
_WINDOWS = ("new", "baseline", "judged", "skipped")
_PREFIX = "sha256:"
_ADDED_UP_S = 10.0
M = TypeVar("M", bound=Record)


class StoreReview:
    """The `ReviewSource` over one store; every reader may see everything.

    Parameters
    ----------
    store
        A separate connection, so that readers of the page do not delay the daemon.
    verifier
        Of evidence.
    machine
        What is known besides.
    clock
        Time.
    """

    def __init__(
        self, store: Store, verifier: Verifier, *, machine: HostFacts, clock: Clock
    ) -> None:
        self._store = store
        self._verifier = verifier
        self._machine = machine
        self._clock = clock
        self._added_up: tuple[float, tuple[Account, ...]] = (float("-inf"), ())
        self._solution = lru_cache(maxsize=256)(self._find_solution)

    def overview(self, viewer: Person) -> Overview:
        """Return what stands on every page."""
        counts: dict[ReviewPhase, int] = {}
        for phase, count in self._store.counts(RecordKind.PROPOSAL).items():
            standing = STANDINGS.get(phase, ReviewPhase.ENDED)
            counts[standing] = counts.get(standing, 0) + count
        warnings = []
        try:
            freezes = Approvals(self._store).freezes(now=self._clock.now())
        except UnreadableInput as error:
            freezes, warnings = (), [f"Frozen: {error}"]
        if not daemon_runs(self._machine.folder):
            warnings.append("No daemon runs on this state: decisions take effect once one runs.")
        return Overview(
            place=self._machine.place, freezes=freezes, counts=counts, warnings=tuple(warnings)
        )

    def proposals(
        self, viewer: Person, part: Slice, *, standing: Collection[ReviewPhase]
    ) -> ResultPage[Row]:
        """Return the proposals that stand so, newest first."""
        phases = [phase for phase, stands in STANDINGS.items() if stands in standing]
        before = id_of(part.before) if part.before else ""
        page = self._store.page(
            RecordKind.PROPOSAL, phases=phases, before=before, limit=part.limit + 1
        )
        asked, rows, unreadable = self._asked(), [], []
        for stored in page[: part.limit]:
            try:
                rows.append(self._row(stored, asked))
            except UnreadableInput as error:  # one hides no other
                unreadable.append(f"{error}; it is {stored.phase}, nothing is swapped for it")
        more = key_of(page[part.limit - 1].id) if len(page) > part.limit else ""
        return ResultPage(rows=tuple(rows), more=more, unreadable=tuple(unreadable))

    def case(self, viewer: Person, key: str) -> ProposalDetails | None:
        """Return all of one proposal; None if it does not exist."""
        stored = self._store.get(RecordKind.PROPOSAL, id_of(key))
        if stored is None:
            return None
        row = self._row(stored, self._asked())
        evidence = read(self._store, self._verifier, row.proposal.evidence)
        return case_of(
            self._store,
            row,
            viewer=viewer,
            evidence=evidence,
            candidate=self._solution(row.proposal.artifact, row.proposal.experiment),
            incumbent=self._incumbent(row.proposal),
            roofs=self._roofs(row.proposal, evidence.document),
            sample=self._sample(row),
            fleet=fleet_of(
                self._store,
                gpus=self._machine.gpus,
                usd_per_gpu_hour=self._machine.usd_per_gpu_hour,
            ),
            gate=gate_of(self._store, stored.id),
        )

    def swaps(self, viewer: Person, part: Slice) -> ResultPage[Line]:
        """Return swaps and rollbacks, newest first."""
        page = self._store.page(
            RecordKind.ORDER, phases=_ORDERS, before=part.before, limit=part.limit + 1
        )
        rows = [_swap_line(stored) for stored in page[: part.limit]]
        more = page[part.limit - 1].id if len(page) > part.limit else ""
        return ResultPage(rows=tuple(rows), more=more)

    def drifts(self, viewer: Person, part: Slice) -> ResultPage[DriftLine]:
        """Return drift reports, newest first."""
        page = self._store.page(
            RecordKind.DRIFT, phases=_DRIFTS, before=part.before, limit=part.limit + 1
        )
        rows, unreadable = [], []
        for stored in page[: part.limit]:
            try:
                rows.append(self._drift(stored))
            except UnreadableInput as error:
                unreadable.append(str(error))
        more = page[part.limit - 1].id if len(page) > part.limit else ""
        return ResultPage(rows=tuple(rows), more=more, unreadable=tuple(unreadable))

    def window(self, viewer: Person, key: str) -> Window | None:
        """Return the window of a drift report; None if it does not exist."""
        stored = self._store.get(RecordKind.DRIFT, key)
        if stored is None:
            return None
        own = self._store.get(RecordKind.WINDOW, key)
        earlier = self._store.page(RecordKind.WINDOW, phases=_WINDOWS, before=key, limit=1)
        return Window(
            line=self._drift(stored),
            profile=_profile(own) if own else None,
            before=_profile(earlier[0]) if earlier else None,
        )

    def accounts(self, viewer: Person) -> tuple[Account, ...]:
        """Return cost and savings, newest month first; the sums are a few seconds old at most."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._added_up[0]:
            found = savings.accounts(self._store)
            self._added_up = (now_s + _ADDED_UP_S, found)
        return self._added_up[1]

    # --- within -----------------------------------------------------------------------------------

    def _row(self, stored: Stored, asked: Mapping[str, Sequence[str]]) -> Row:
        gate = gate_of(self._store, stored.id)
        return Row(
            key=key_of(stored.id),
            name=stored.id,
            proposal=read_proposal(stored),
            phase=stored.phase,
            standing=STANDINGS.get(stored.phase, ReviewPhase.ENDED),
            gate=gate_facts(gate) if gate else None,
            asked=tuple(asked.get(stored.id, ())),
            updated_at=stored.updated_at,
        )

    def _asked(self) -> Mapping[str, Sequence[str]]:
        found = asked_for(self._store)
        return {id: [each.sentence() for each in waiting] for id, waiting in found.items()}

    def _incumbent(self, proposal: Proposal) -> Solution | None:
        stock = self._machine.incumbent(proposal.definition)
        if stock is not None and stock.digest == proposal.baseline:
            return stock
        return self._solution(proposal.baseline, "")

    def _find_solution(self, digest: Digest, experiment: str) -> Solution | None:
        """Return a variant that is kept; it never changes, so it is looked for once."""
        stored = (
            self._store.get(RecordKind.FINDING, f"{experiment}/{digest}") if experiment else None
        )
        if stored is None:
            return found_solution(self._store, digest)
        try:
            return Solution.model_validate(stored.body.get("solution"))
        except ValidationError:
            return None

    def _roofs(self, proposal: Proposal, document: EvidenceDocument | None) -> Roofs | None:
        if document is None:
            return None
        shapes = [shape.axes for shape in document.verdict.shapes]
        return self._machine.roofs(proposal, shapes, document.environment.arch)

    def _sample(self, row: Row) -> WatchSample | None:
        """Return what the server counts of the artifact; None where it does not run it."""
        if row.standing not in (ReviewPhase.UNDER_WAY, ReviewPhase.IN_PLACE):
            return None
        proposal = row.proposal
        for sample in self._machine.samples():
            if (sample.definition, sample.artifact) == (proposal.definition, proposal.artifact):
                return sample
        return None

    def _drift(self, stored: Stored) -> DriftLine:
        report = _read(stored, DriftReport)
        at = datetime.fromtimestamp(report.window_start_ns / 1e9, UTC)
        alarm = report.action is DriftAction.ALARM  # of others nothing is written
        beside = said_beside(self._store, RecordKind.DRIFT, stored.id) if alarm else ""
        return DriftLine(
            key=stored.id, target=self._machine.place, at=at, report=report, beside=beside
        )


def id_of(key: str) -> str:
    """Return the id of a proposal by its key.

    Examples
    --------
    >>> id_of("ab" * 32) == "sha256:" + "ab" * 32, id_of("other")
    (True, 'other')
    """
    bare = len(key) == 64 and all(each in "0123456789abcdef" for each in key)
    return _PREFIX + key if bare else key


def key_of(id: str) -> str:
    """Return what the address of a proposal ends with."""
    return id.removeprefix(_PREFIX)


def _swap_line(stored: Stored) -> Line:
    body = stored.body
    artifact = str(body.get("artifact") or "the original")
    return Line(
        at=stored.updated_at,
        who="retuned",
        what=f"{body.get('kind', '?')} {stored.phase}",
        detail=f"epoch {body.get('epoch', '?')}, to {artifact}",
        key=key_of(str(body.get("proposal", ""))),
        kernel=str(body.get("definition", "?")),
        target=str(body.get("target", "")),
    )


def _read(stored: Stored, model: type[M]) -> M:
    try:
        return model.model_validate(stored.body)
    except ValidationError as error:
        raise UnreadableInput(
            "record-unreadable",
            where=f"{stored.kind} {stored.id}",
            message=f"does not read as {model.__name__} ({error.error_count()} problems)",
        ) from error


def _profile(stored: Stored) -> WorkloadProfile | None:
    try:
        return WorkloadProfile.model_validate(stored.body.get("profile"))
    except ValidationError:
        return None
