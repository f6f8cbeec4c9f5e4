"""The facts of the page in a cluster: copies that the operator keeps anyway, and its store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace

from retuned.errors import TemporaryError, UnreadableInput
from retuned.ports import Clock
from retuned.stages.watch import Account
from retuned.web.records import (
    CostBasis,
    DriftLine,
    Line,
    Overview,
    Person,
    ProposalDetails,
    ProposalStanding,
    ResultPage,
    Row,
    Slice,
    Window,
)
from retuned_operator.controllers import reading
from retuned_operator.controllers.accelerators import gpus_of_all
from retuned_operator.controllers.ports import BY_PHASE, BY_PROPOSAL, Caches
from retuned_operator.controllers.swaps import server_pods
from retuned_operator.crds import PolicyObject, SwapProposal, TuningTarget, read
from retuned_operator.crds.proposal_status import ProposalPhase
from retuned_operator.review.case import case_of, row_of, standing_of, swap_lines
from retuned_operator.review.ports import ReviewStore
from retuned_operator.review.said import PendingDecisions
from retuned_operator.review.sight import AccessReview
from retuned_operator.runtime.resources import (
    DECISIONS,
    EXPERIMENTS,
    FREEZES,
    POLICIES,
    PROPOSALS,
    TARGETS,
)

KEEP_S = 5.0
"""Seconds that the order of ended proposals is kept; each that is shown is read anew."""
_RETRY_S = 5.0
_DRIFTS = 2_000
"""Most reports that are looked through for those that somebody may see."""


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
        Words that the caches do not have yet.
    clock
        Time.
    place
        What this cluster is called.
    usd_per_gpu_hour
        Price of an hour; None where nobody said.
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
        """Return what stands on every page."""
        namespaces = self._namespaces(viewer)
        counts = {
            standing: sum(key.partition("/")[0] in namespaces for key in self._orders.of(standing))
            for standing in ProposalStanding
        }
        freezes = reading.freezes(self._caches.list(FREEZES))
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
        self, viewer: Person, part: Slice, *, standing: Collection[ProposalStanding]
    ) -> ResultPage[Row]:
        """Return the proposals that stand so, newest first."""
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
        """Return all of one proposal; None where there is none that the viewer may see."""
        namespace = key.partition("/")[0]
        if not self._sight.sees(viewer, namespace):
            return None
        found = self._proposal(key)
        if found is None:
            return None
        target = self._target(found.target)
        known = self._said.among(key, self._caches.by(DECISIONS, BY_PROPOSAL, key))
        decisions = reading.decisions(known)
        if decisions is None:
            raise TemporaryError(
                "what people said about it cannot all be read now; it may be a no", delay_s=_RETRY_S
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
        )

    def swaps(self, viewer: Person, part: Slice) -> ResultPage[Line]:
        """Return swaps and ways back, newest first; of those that ended long ago only some."""
        namespaces = self._namespaces(viewer)
        lines: list[Line] = []
        for standing in (
            ProposalStanding.UNDER_WAY,
            ProposalStanding.IN_PLACE,
            ProposalStanding.GOING_BACK,
        ):
            for key in self._orders.of(standing):
                lines += self._swaps_of(key, namespaces)
        for key in self._orders.of(ProposalStanding.ENDED)[: 4 * part.limit]:
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
        """Return the window of a drift report; None where there is none."""
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
        known |= {
            key.partition("/")[0] for each in ProposalStanding for key in self._orders.of(each)
        }
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

    def _beside(self, found: SwapProposal) -> str:
        """Return what its experiment says of the devices; a win that was proposed says no more."""
        key = f"{found.metadata.namespace}/{found.spec.experiment_ref}"
        body = self._caches.get(EXPERIMENTS, key)
        status = reading.part(body, "status") if body is not None else {}
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
    """Keys of proposals by standing, newest first, kept for a moment."""

    def __init__(self, dates: Callable[[str], Mapping[str, str]], *, clock: Clock) -> None:
        self._dates = dates
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[ProposalStanding, tuple[float, list[tuple[str, str]]]] = {}

    def of(self, standing: ProposalStanding) -> list[str]:
        """Return the keys of those that stand so."""
        return [key for _, key in self._dated(standing)]

    def merged(self, standing: Collection[ProposalStanding]) -> list[str]:
        """Return the keys of those that stand so, or so."""
        dated = sorted((each for one in standing for each in self._dated(one)), reverse=True)
        return [key for _, key in dated]

    def _dated(self, standing: ProposalStanding) -> list[tuple[str, str]]:
        now_s = self._clock.monotonic_s()
        with self._lock:
            kept = self._kept.get(standing)
        if kept is not None and now_s - kept[0] < _keep_s(standing):
            return kept[1]
        found = [
            (made, key)
            for phase in ProposalPhase
            if standing_of(phase) is standing
            for key, made in self._dates(phase.value).items()
        ]
        found.sort(reverse=True)
        with self._lock:
            self._kept[standing] = (now_s, found)
        return found


def _keep_s(standing: ProposalStanding) -> float:
    """Return how long an order is kept: what is decided on is never shown as it was."""
    return KEEP_S if standing in (ProposalStanding.ENDED, ProposalStanding.IN_PLACE) else 0.0
