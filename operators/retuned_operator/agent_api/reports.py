"""The last reports of each pod, in memory, and what the state machines read of them.

Windows and drift are also written to a persistent archive. Each pod reports the status of its slots
every few seconds, so an operator that starts gets it soon. Until then it starts nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from retuned.api.agent import (
    DefinitionPost,
    DriftPost,
    Hello,
    OrderDone,
    PodProof,
    ProfileReport,
    ProofPost,
    SlotWatch,
    TunablePost,
    WatchPost,
)
from retuned.control.facts import HeldFact, PodFact
from retuned.stages.watch import WatchAction, WatchReport
from retuned_operator.agent_api.ports import Inbox, PodRecord, Receipt, Said

FRESH = timedelta(seconds=60)
"""How long a pod's status of slots counts as current; reported harm stays."""
MAX_PODS = 20_000
"""Most pods that are remembered, those that reported last."""
_MAX_DONE = 64
_MAX_SPANS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PodReports:
    """The last messages of one pod."""

    pod: PodRecord
    """Which."""
    heard_at: datetime
    """When its last message arrived."""
    hello: Hello | None = None
    """Who it is; None before."""
    watch: WatchPost | None = None
    """Status of its slots; None before the first report."""
    watched_at: datetime | None = None
    """When that came; None before."""
    proofs: ProofPost | None = None
    """Its live proofs; None where its sidecar does not report them."""
    done: tuple[OrderDone, ...] = ()
    """What became of its last orders, oldest first."""
    profiled_at: datetime | None = None
    """When its last window came; None before."""
    kernels: int = 0
    """Kernels in that window."""
    spans: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By proposal: the pod's last spans in which something became of an order of it, each a
    ``traceparent``, oldest first."""


class Reports:
    """The `Inbox` of the operator.

    Parameters
    ----------
    archive
        Takes windows and drift, for good.
    changed
        Called with the target of a pod whose report has something new for decisions.
    """

    def __init__(self, archive: Inbox, *, changed: Callable[[str], None] = lambda _: None) -> None:
        self._archive = archive
        self._changed = changed
        self._lock = threading.Lock()
        self._said: OrderedDict[str, PodReports] = OrderedDict()

    def take(self, receipt: Receipt, said: Said) -> None:
        """Keep a message; see `Inbox.take`."""
        archived = isinstance(said, ProfileReport | DriftPost | DefinitionPost | TunablePost)
        if archived and not receipt.pod.replica:
            self._archive.take(receipt, said)  # first: if it fails, the pod sends it again
        with self._lock:
            before = self._said.get(receipt.pod.uid)
            known = before or PodReports(pod=receipt.pod, heard_at=receipt.at)
            after = replace(_with(known, receipt, said), pod=receipt.pod, heard_at=receipt.at)
            self._said[receipt.pod.uid] = after
            self._said.move_to_end(receipt.pod.uid)
            while len(self._said) > MAX_PODS:
                self._said.popitem(last=False)
        if _is_news(before, after, said):
            self._changed(receipt.pod.target)

    def of(self, uid: str) -> PodReports | None:
        """Return the last messages of a pod; None if there are none."""
        with self._lock:
            return self._said.get(uid)

    def has_heard(self, pod: PodRecord) -> bool:
        """Whether a pod has sent its hello since this process started."""
        said = self.of(pod.uid)
        return said is not None and said.hello is not None

    def forget_all_but(self, uids: Collection[str]) -> None:
        """Drop pods that are gone."""
        with self._lock:
            for uid in self._said.keys() - set(uids):
                del self._said[uid]


def _with(known: PodReports, receipt: Receipt, said: Said) -> PodReports:
    match said:
        case Hello():
            return replace(known, hello=said)
        case WatchPost():
            return replace(known, watch=said, watched_at=receipt.at)
        case ProofPost():
            return replace(known, proofs=said)
        case OrderDone():
            others = tuple(
                each
                for each in known.done
                if (each.order, each.outcome) != (said.order, said.outcome)
            )
            done = (*others, said)[-_MAX_DONE:]
            named = {each.proposal for each in done}
            spans = {key: found for key, found in known.spans.items() if key in named}
            if receipt.traceparent:
                found = dict.fromkeys((*spans.get(said.proposal, ()), receipt.traceparent))
                spans[said.proposal] = tuple(found)[-_MAX_SPANS:]
            return replace(known, done=done, spans=spans)
        case ProfileReport():
            kernels = {stat.signature.kernel for stat in said.profile.stats}
            return replace(known, profiled_at=receipt.at, kernels=len(kernels))
        case DriftPost() | DefinitionPost() | TunablePost():
            return known


def _is_news(before: PodReports | None, after: PodReports, said: Said) -> bool:
    """Whether a report has something new that a decision reads.

    Every pod reports the status of its slots every few seconds, mostly without a change.
    """
    if isinstance(said, ProofPost) and before is not None and before.pod == after.pod:
        return before.proofs is None or _proof_essence(before.proofs) != _proof_essence(said)
    if not isinstance(said, WatchPost) or before is None or before.pod != after.pod:
        return True
    if before.watch is None or before.watched_at is None:
        return True
    stale = after.heard_at - before.watched_at > FRESH
    return stale or _essence(before.watch) != _essence(said)


def _proof_essence(post: ProofPost) -> object:
    """Return what decisions read of a post of live proofs."""
    proofs = [(each.order, each.phase, each.claim is None) for each in post.proofs]
    days = [(each.order, each.claim) for each in post.days]
    days += [(each.order, each.claim) for each in post.trials]
    overhead, boot = post.overhead and post.overhead.at, post.boot
    measured = None if boot is None else (boot.replica, boot.phase, boot.reason, boot.window)
    said = (post.unavailable, post.temporary, post.levels, post.engine)
    return (*said, proofs, days, overhead, measured)


def _essence(watch: WatchPost) -> object:
    """Return what decisions read of a post: no counts, and no words for people."""
    slots = [
        (s.definition, s.active, s.epoch, s.newest_epoch, s.tripped, s.proposal)
        + ((s.report.action, s.report.reason) if s.report is not None else ())
        for s in watch.slots
    ]
    return slots, [(each.order, each.final, each.reason) for each in watch.held]


def pod_fact(
    said: PodReports | None,
    *,
    name: str,
    uid: str,
    ready: bool,
    kernel: str,
    proposal: str,
    now: datetime,
    ends: int = 0,
) -> PodFact:
    """Return what a step of a proposal reads of one pod.

    Parameters
    ----------
    said
        Its last messages; None if there are none.
    name, uid, ready, ends
        As the cluster knows it.
    kernel
        Slot that the proposal is about.
    proposal
        Id of the stage's record, see `SwapProposal.stage_proposal`: reports about another
        proposal in the same slot do not count.
    now
        The operator's time.
    """
    slot = _slot(said, kernel)
    held = held_fact(said, kernel=kernel, proposal=proposal)
    if said is None or slot is None:
        return PodFact(name=name, uid=uid, ready=ready, ends=ends, held=held)
    return PodFact(
        name=name,
        uid=uid,
        ready=ready,
        active=slot.active,
        epoch=slot.epoch,
        newest_epoch=slot.newest_epoch,
        tripped=slot.tripped if slot.proposal in ("", proposal) else "",
        ends=ends,
        report=_report(said, slot, proposal=proposal, now=now),
        held=held,
    )


def held_fact(said: PodReports | None, *, kernel: str, proposal: str) -> HeldFact | None:
    """Return why a pod has not carried out its newest order of a proposal; None where it has.

    Parameters
    ----------
    said
        Its last messages; None if there are none.
    kernel, proposal
        As of `pod_fact`. The server may not have the slot yet.
    """
    told = said.watch.held if said is not None and said.watch is not None else ()
    held = next((e for e in told if (e.definition, e.proposal) == (kernel, proposal)), None)
    if held is None:
        return None
    return HeldFact(epoch=held.epoch, final=held.final, reason=held.reason, detail=held.detail)


def proof_of(said: PodReports | None, *, kernel: str, proposal: str) -> PodProof | None:
    """Return what a pod reports of the newest proof of a proposal; None without one."""
    posted = said.proofs.proofs if said is not None and said.proofs is not None else ()
    return _newest(posted, kernel=kernel, proposal=proposal)


def day_of(said: PodReports | None, *, kernel: str, proposal: str) -> PodProof | None:
    """Return what a pod reports of the newest day of a sentinel; None without one."""
    posted = said.proofs.days if said is not None and said.proofs is not None else ()
    return _newest(posted, kernel=kernel, proposal=proposal)


def trial_of(said: PodReports | None, *, kernel: str, proposal: str) -> PodProof | None:
    """Return what a pod reports of the newest trial of an alarm; None without one."""
    posted = said.proofs.trials if said is not None and said.proofs is not None else ()
    return _newest(posted, kernel=kernel, proposal=proposal)


def _newest(posted: Iterable[PodProof], *, kernel: str, proposal: str) -> PodProof | None:
    mine = (each for each in posted if (each.definition, each.proposal) == (kernel, proposal))
    return max(mine, key=lambda each: each.epoch, default=None)


def _slot(said: PodReports | None, kernel: str) -> SlotWatch | None:
    slots = said.watch.slots if said is not None and said.watch is not None else ()
    return next((each for each in slots if each.definition == kernel), None)


def _report(
    said: PodReports, slot: SlotWatch, *, proposal: str, now: datetime
) -> WatchReport | None:
    if slot.report is None or slot.proposal != proposal or said.watched_at is None:
        return None
    fresh = now - said.watched_at <= FRESH
    return slot.report if fresh or slot.report.action is WatchAction.ROLLBACK else None
