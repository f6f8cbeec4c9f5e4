"""The facts of the page in a cluster: copies that the operator keeps anyway, and its store.

From custom resources to what the pages show. Pure.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from retuned.api.proposal import GateStatus, PodState, ProposalPhase, Step
from retuned.errors import TemporaryError, UnreadableInput
from retuned.ports import Clock
from retuned.review.records import (
    Act,
    CostBasis,
    DriftLine,
    Gate,
    Line,
    NodeRow,
    Overview,
    Person,
    ProposalDetails,
    ResultPage,
    ReviewPhase,
    Row,
    Slice,
    Window,
    acts_in,
    review_phase_of,
)
from retuned.stages.gate import DecisionKind
from retuned.stages.gate.description import live_proof_words
from retuned.stages.watch import Account
from retuned.stages.watch.proof import ProofState
from retuned_operator.controllers import objects
from retuned_operator.controllers.accelerators import gpus_of_all
from retuned_operator.controllers.cluster_view import server_pods
from retuned_operator.controllers.live_proofs import proven
from retuned_operator.controllers.ports import BY_PHASE, BY_PROPOSAL, Caches
from retuned_operator.kube.resources import (
    DECISIONS,
    EXPERIMENTS,
    FREEZES,
    POLICIES,
    PROPOSALS,
    TARGETS,
)
from retuned_operator.kubectl.cluster_session import KubernetesUser, full_name
from retuned_operator.kubectl.decisions import warnings
from retuned_operator.review.access import AccessReview
from retuned_operator.review.decisions import PendingDecisions
from retuned_operator.review.ports import ReviewStore
from retuned_operator.schema import PolicyObject, SwapDecision, SwapProposal, TuningTarget, read

log = logging.getLogger(__name__)

_SWAPS = frozenset(
    {
        ProposalPhase.CANARY,
        ProposalPhase.WATCHING,
        ProposalPhase.PROMOTED,
        ProposalPhase.ROLLING_BACK,
        ProposalPhase.ROLLBACK_FAILED,
        ProposalPhase.ROLLED_BACK,
    }
)
"""Phases whose beginning is a line of the page of swaps."""


def row_of(found: SwapProposal) -> Row:
    """Return a proposal as a list shows it."""
    status = found.status
    steps = status.history
    return Row(
        key=full_name(found),
        name=full_name(found),
        proposal=found.stage_proposal(),
        phase=status.phase.value,
        standing=review_phase_of(status.phase),
        gate=gate_of(status.gate) if status.gate else None,
        updated_at=steps[-1].at if steps else found.metadata.creation_timestamp,
    )


def gate_of(status: GateStatus) -> Gate:
    """Return the gate's answer for the pages."""
    return Gate(
        state=status.state.value,
        reason=status.reason.value,
        sentence=status.sentence,
        policy=status.policy,
        policy_digest=status.policy_digest,
        name=status.name,
        required=status.required,
        received=status.received,
        missing=status.missing,
        missing_from=status.missing_from,
    )


def warnings_of(
    found: SwapProposal, policy: PolicyObject | None, viewer: Person
) -> Mapping[Act, tuple[str, ...]]:
    """Return why the gate may not count a decision of a viewer."""
    if policy is None:
        return {}
    who = KubernetesUser(user=viewer.user, groups=viewer.groups)
    return {
        act: warnings(found, policy, who, kind=kind, comment="-")
        for act, kind in (
            (Act.APPROVE, DecisionKind.APPROVE),
            (Act.BREAK_GLASS, DecisionKind.BREAK_GLASS),
        )
    }


def wants_comment(found: SwapProposal, policy: PolicyObject | None) -> bool:
    """Whether the policy's gate asks for a reason."""
    gate = found.status.gate
    if policy is None or gate is None:
        return False
    own = next((each for each in policy.spec.gates if each.name == gate.name), None)
    return own is not None and own.approvals.require_comment


def case_of(
    found: SwapProposal,
    decisions: Sequence[SwapDecision],
    policy: PolicyObject | None,
    *,
    viewer: Person,
    fleet: CostBasis,
) -> ProposalDetails:
    """Return what the objects alone say of a proposal; evidence and sources are the store's."""
    row = row_of(found)
    return ProposalDetails(
        row=row,
        acts=acts_in(found.status.phase),
        doubts=warnings_of(found, policy, viewer),
        words=tuple(each.stage_decision(row.proposal.id) for each in decisions),
        places=tuple(_places(found)),
        lines=tuple(_lines(found)),
        fleet=fleet,
        commands=tuple(_commands(found)),
        comment_wanted=wants_comment(found, policy),
        plan=() if policy is None else live_proof_words(policy.spec.live_proof),
        accounts=tuple(
            (each.name, each.account.account())
            for each in found.status.live_proofs
            if each.account is not None
        )[-_ACCOUNTS:],
    )


def swap_lines(found: SwapProposal) -> Iterator[Line]:
    """Return its swaps and rollbacks, oldest first."""
    for step in found.status.history:
        if step.to in _SWAPS:
            yield _line(step, found)


def _lines(found: SwapProposal) -> Iterator[Line]:
    created = found.metadata.creation_timestamp
    if created is not None:
        yield Line(at=created, who=found.spec.requested_by, what="proposed")
    for step in found.status.history:
        yield _line(step, found)
    for look in found.status.analysis.last:
        words = ": ".join(filter(None, (look.reason, look.detail)))
        yield Line(at=look.at, who="retuned", what=f"look {look.outcome}", detail=words)
    boots = found.status.replicas
    if boots is not None:
        what = f"canary-replicas-{boots.verdict or 'running'}"
        yield Line(at=boots.at or boots.since, who="retuned", what=what, detail=boots.sentence)
    told = {
        "live-proof": found.status.live_proofs,
        "sentinel": found.status.sentinels,
        "attribution": found.status.attributions,
    }
    for cause, proofs in told.items():
        for proof in proofs:
            if proof.at is not None:
                detail = f"{proof.name}: {proof.sentence}"
                what = f"{cause}-{proof.verdict}"
                yield Line(at=proof.at, who="retuned", what=what, detail=detail)


def _line(step: Step, found: SwapProposal) -> Line:
    return Line(
        at=step.at,
        who=step.by,
        what=f"{step.from_} to {step.to}",
        detail=step.reason,
        key=full_name(found),
        kernel=found.spec.kernel,
        target=found.target,
    )


def _places(found: SwapProposal) -> Iterator[NodeRow]:
    rollout = found.status.rollout
    for pod in rollout.pods if rollout is not None else ():
        told = "swap it in" if pod.wants is PodState.SWAP else "roll back"
        yield NodeRow(name=pod.name, told=told, done=pod.done, since=pod.since, epoch=pod.epoch)


def _commands(found: SwapProposal) -> Iterator[str]:
    name, phase = full_name(found), found.status.phase
    if phase in (ProposalPhase.AWAITING_APPROVAL, ProposalPhase.PAUSED):
        yield f"kubectl retuned approve {name} --digest {found.spec.artifact.digest}"
    if phase.is_before_swap:
        yield f"kubectl retuned reject {name}"
    elif phase.is_under_way or phase is ProposalPhase.PROMOTED:
        yield f"kubectl retuned rollback {name}"


KEEP_S = 5.0
"""Seconds that the order of ended proposals is cached; the page reads each proposal again."""
_RETRY_S = 5.0
_PROOFS = 2
"""Most pods of a proposal whose pairs are shown, the newest."""
_ACCOUNTS = 4
"""Most pods of a proposal whose account is shown, the newest."""
_DRIFTS = 2_000
"""Most reports that are searched for those that a person may see."""


class ClusterReview:
    """The `ReviewSource` of a cluster.

    Parameters
    ----------
    caches
        Copies of the cluster's objects.
    shelf
        The operator's store.
    sight
        Who may see what.
    said
        Decisions that the caches do not have yet.
    clock
        Time.
    place
        What this cluster is called.
    usd_per_gpu_hour
        Price of an hour; None if no price is set.
    gpu_resources
        Names of the resources that are accelerators.
    """

    def __init__(
        self,
        caches: Caches,
        shelf: ReviewStore,
        sight: AccessReview,
        said: PendingDecisions,
        *,
        clock: Clock,
        place: str,
        usd_per_gpu_hour: float | None = None,
        gpu_resources: Collection[str] = (),
    ) -> None:
        self._caches = caches
        self._shelf = shelf
        self._sight = sight
        self._clock = clock
        self._place = place
        self._price = usd_per_gpu_hour
        self._gpu_resources = frozenset(gpu_resources)
        self._said = said
        self._orders = _Orders(self._dates, clock=clock)

    def overview(self, viewer: Person) -> Overview:
        """Return the content that is on every page."""
        namespaces = self._namespaces(viewer)
        counts = {
            standing: sum(key.partition("/")[0] in namespaces for key in self._orders.of(standing))
            for standing in ReviewPhase
        }
        freezes = objects.freezes(self._caches.list(FREEZES))
        now, warnings = self._clock.now(), []
        if freezes is None:
            warnings.append("Frozen: a freeze cannot be read, so nothing starts.")
        if not namespaces:
            warnings.append("You may see no proposals; the ClusterRole retuned-viewer lets you.")
        standing = tuple(f for f in freezes or () if f.until is None or now < f.until)
        return Overview(
            place=self._place, freezes=standing, counts=counts, warnings=tuple(warnings)
        )

    def proposals(
        self, viewer: Person, part: Slice, *, standing: Collection[ReviewPhase]
    ) -> ResultPage[Row]:
        """Return the proposals in these review phases, newest first."""
        namespaces = self._namespaces(viewer)
        keys = self._orders.merged(standing)
        seen = [key for key in keys if key.partition("/")[0] in namespaces]
        if part.before:
            seen = seen[seen.index(part.before) + 1 :] if part.before in seen else []
        rows, unreadable = [], []
        for key in seen[: part.limit]:
            try:
                found = self._proposal(key)
            except UnreadableInput as error:  # one hides no other
                unreadable.append(str(error))
                continue
            if found is not None:
                rows.append(row_of(found))
        more = seen[part.limit - 1] if len(seen) > part.limit else ""
        return ResultPage(rows=tuple(rows), more=more, unreadable=tuple(unreadable))

    def case(self, viewer: Person, key: str) -> ProposalDetails | None:
        """Return all of one proposal; None if the viewer may not see it or it does not exist."""
        namespace = key.partition("/")[0]
        if not self._sight.sees(viewer, namespace):
            return None
        found = self._proposal(key)
        if found is None:
            return None
        target = self._target(found.target)
        known = self._said.among(key, self._caches.by(DECISIONS, BY_PROPOSAL, key))
        decisions = objects.decisions(known)
        if decisions is None:
            raise TemporaryError(
                "not all decisions can be read now; one may be a rejection", delay_s=_RETRY_S
            )
        spoken = sorted(
            (each for each in decisions if each.spec.proposal_ref.uid == found.metadata.uid),
            key=lambda each: each.metadata.creation_timestamp or self._clock.now(),
        )
        kept = self._shelf.evidence(found.spec.evidence)
        shapes = [shape.axes for shape in kept.document.verdict.shapes] if kept.document else []
        arch = kept.document.environment.arch if kept.document else ""
        spec = found.spec
        return replace(
            case_of(
                found, spoken, self._policy(found), viewer=viewer, fleet=self._fleet(found.target)
            ),
            document=kept.document,
            doubt=kept.doubt,
            candidate=self._shelf.solution(spec.artifact.digest),
            incumbent=self._shelf.solution(spec.baseline_digest)
            or (self._shelf.incumbent(spec.kernel, target) if target else None),
            roofs=self._shelf.roofs(spec.kernel, shapes, arch),
            beside=self._beside(found),
            proofs=tuple(self._proofs(found)),
        )

    def swaps(self, viewer: Person, part: Slice) -> ResultPage[Line]:
        """Return swaps and rollbacks, newest first; of those that ended long ago only some."""
        namespaces = self._namespaces(viewer)
        lines: list[Line] = []
        for standing in (
            ReviewPhase.UNDER_WAY,
            ReviewPhase.IN_PLACE,
            ReviewPhase.GOING_BACK,
        ):
            for key in self._orders.of(standing):
                lines += self._swaps_of(key, namespaces)
        for key in self._orders.of(ReviewPhase.ENDED)[: 4 * part.limit]:
            lines += self._swaps_of(key, namespaces)
        lines.sort(key=lambda line: line.at, reverse=True)
        at = int(part.before) if part.before.isdecimal() and len(part.before) < 9 else 0
        more = str(at + part.limit) if len(lines) > at + part.limit else ""
        return ResultPage(rows=tuple(lines[at : at + part.limit]), more=more)

    def drifts(self, viewer: Person, part: Slice) -> ResultPage[DriftLine]:
        """Return drift reports, newest first."""
        rows: list[DriftLine] = []
        before, looked = part.before, 0
        while len(rows) <= part.limit and looked < _DRIFTS:
            found = self._shelf.drifts(before=before, limit=part.limit + 1)
            rows += [each for each in found if self._sees(viewer, each)]
            looked += len(found)
            if len(found) <= part.limit:
                break
            before = found[-1].key
        more = rows[part.limit - 1].key if len(rows) > part.limit else ""
        return ResultPage(rows=tuple(rows[: part.limit]), more=more)

    def window(self, viewer: Person, key: str) -> Window | None:
        """Return the window of a drift report; None if it does not exist."""
        found = self._shelf.window(key)
        return found if found is not None and self._sees(viewer, found.line) else None

    def accounts(self, viewer: Person) -> tuple[Account, ...]:
        """Return what was spent and saved, newest month first."""
        namespaces = self._namespaces(viewer)
        return tuple(
            each for each in self._shelf.accounts() if each.target.partition("/")[0] in namespaces
        )

    # --- within -----------------------------------------------------------------------------------

    def _namespaces(self, viewer: Person) -> frozenset[str]:
        bodies = self._caches.list(TARGETS)
        if bodies is None:
            raise TemporaryError("the cluster's objects are not known yet", delay_s=_RETRY_S)
        known = {str(body.get("metadata", {}).get("namespace", "")) for body in bodies}
        known |= {key.partition("/")[0] for each in ReviewPhase for key in self._orders.of(each)}
        return self._sight.namespaces(viewer, sorted(known))

    def _dates(self, phase: str) -> Mapping[str, str]:
        found = self._caches.dated(PROPOSALS, BY_PHASE, phase)
        if found is None:
            raise TemporaryError("the proposals are not known yet", delay_s=_RETRY_S)
        return found

    def _proposal(self, key: str) -> SwapProposal | None:
        body = self._caches.get(PROPOSALS, key)
        return read(SwapProposal, body) if body is not None else None

    def _target(self, key: str) -> TuningTarget | None:
        body = self._caches.get(TARGETS, key)
        try:
            return read(TuningTarget, body) if body is not None else None
        except UnreadableInput:
            return None

    def _policy(self, found: SwapProposal) -> PolicyObject | None:
        gate = found.status.gate
        body = self._caches.get(POLICIES, gate.policy) if gate and gate.policy else None
        try:
            return read(PolicyObject, body) if body is not None else None
        except UnreadableInput:
            return None

    def _proofs(self, found: SwapProposal) -> Iterator[tuple[str, ProofState]]:
        """Yield the newest proofs whose signed pairs are kept, oldest first."""
        kept = [(p.name, p.evidence) for p in found.status.live_proofs if p.evidence is not None]
        for name, digest in kept[-_PROOFS:]:
            try:
                document = self._shelf.proof(digest)
                if document is not None:
                    yield name, proven(document)
            except (ValueError, TemporaryError) as error:  # such as one of another version
                log.warning("the pairs of %s are not shown: %s", name, error)

    def _beside(self, found: SwapProposal) -> str:
        """Return the note about devices, which is the detail of a proposed experiment."""
        key = f"{found.metadata.namespace}/{found.spec.experiment_ref}"
        body = self._caches.get(EXPERIMENTS, key)
        status = objects.part(body, "status") if body is not None else {}
        return str(status.get("detail", "")) if status.get("reason") == "proposed" else ""

    def _fleet(self, key: str) -> CostBasis:
        """Reckon with the accelerators that the pods request."""
        target = self._target(key)
        return CostBasis(
            gpus=self._gpus(target) if target else 1,
            busy_ratio=self._shelf.busy_ratio(key),
            usd_per_gpu_hour=self._price,
        )

    def _gpus(self, target: TuningTarget) -> int:
        """Return the accelerators of a target's pods; one a pod while those are not known."""
        bodies = server_pods(self._caches, target) or ()
        return gpus_of_all(bodies, self._gpu_resources) or max(1, target.status.pods)

    def _swaps_of(self, key: str, namespaces: frozenset[str]) -> Iterator[Line]:
        if key.partition("/")[0] not in namespaces:
            return
        try:
            found = self._proposal(key)
        except UnreadableInput:
            return
        if found is not None:
            yield from swap_lines(found)

    def _sees(self, viewer: Person, line: DriftLine) -> bool:
        return self._sight.sees(viewer, line.target.partition("/")[0])


class _Orders:
    """Keys of proposals by review phase, newest first, cached for `KEEP_S`."""

    def __init__(self, dates: Callable[[str], Mapping[str, str]], *, clock: Clock) -> None:
        self._dates = dates
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[ReviewPhase, tuple[float, list[tuple[str, str]]]] = {}

    def of(self, standing: ReviewPhase) -> list[str]:
        """Return the keys of proposals in one review phase."""
        return [key for _, key in self._dated(standing)]

    def merged(self, standing: Collection[ReviewPhase]) -> list[str]:
        """Return the keys of proposals in any of some review phases."""
        dated = sorted((each for one in standing for each in self._dated(one)), reverse=True)
        return [key for _, key in dated]

    def _dated(self, standing: ReviewPhase) -> list[tuple[str, str]]:
        now_s = self._clock.monotonic_s()
        with self._lock:
            kept = self._kept.get(standing)
        if kept is not None and now_s - kept[0] < _keep_s(standing):
            return kept[1]
        found = [
            (made, key)
            for phase in ProposalPhase
            if review_phase_of(phase) is standing
            for key, made in self._dates(phase.value).items()
        ]
        found.sort(reverse=True)
        with self._lock:
            self._kept[standing] = (now_s, found)
        return found


def _keep_s(standing: ReviewPhase) -> float:
    """Return how long an order is kept: what is decided on is never shown as it was."""
    return KEEP_S if standing in (ReviewPhase.ENDED, ReviewPhase.IN_PLACE) else 0.0
