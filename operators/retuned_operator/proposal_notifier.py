"""Notices about proposals of a cluster, read from the informers at each pass.

Level-triggered, as on one machine: a proposal that waits for approvals is open, one that was open
and no longer waits is closed. While the informers are not filled, nothing is closed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime, timedelta

from retuned.api.proposal import ProposalPhase, Step
from retuned.control import attributions, sentinels
from retuned.errors import UnreadableInput
from retuned.notify import messages
from retuned.notify.messages import Notice, Place
from retuned.notify.sender import Sender
from retuned.stages.gate import GateDecision
from retuned.stages.proposal import Proposal
from retuned_operator.controllers.ports import BY_PHASE, Caches
from retuned_operator.kube.informer import key_of
from retuned_operator.kube.resources import PROPOSALS, Obj
from retuned_operator.schema import SwapProposal, read

log = logging.getLogger(__name__)

_PAGES = (f"{sentinels.CAUSE}-", f"{attributions.CAUSE}-")
"""Prefixes of rollback reasons for which a person is paged: the swap had been promoted."""
_LONGEST_KEY = 200
"""Of ``namespace/name``; the operator's own names are shorter by far."""
_NEWS_FOR = timedelta(days=1)
_OPEN = {False: ProposalPhase.AWAITING_APPROVAL, True: ProposalPhase.ROLLBACK_FAILED}
"""Phase in which a subject is open, by whether it is a failing rollback."""


class ProposalNotifier:
    """Yields the notices that hold now; only the leader runs it.

    Parameters
    ----------
    caches
        The cluster.
    sender
        Which subjects are open.
    place
        Where people find a proposal, by ``namespace/name``.
    """

    def __init__(self, caches: Caches, sender: Sender, *, place: Place) -> None:
        self._caches = caches
        self._sender = sender
        self._place = place
        self._known: dict[str, tuple[str, SwapProposal]] = {}

    def notices(self, now: datetime) -> Iterator[Notice]:
        """Yield the notices that hold now, those that close something first."""
        yield from self._closed(now)
        before, self._known = self._known, {}
        for found in self._in(ProposalPhase.AWAITING_APPROVAL, before):
            record, gate = record_of(found), gate_of(found, now=now)
            if gate is not None:
                round = self._sender.rounds(record.id)
                notice = messages.awaiting(record, gate, place=self._place, round=round, now=now)
                if notice is not None:
                    yield notice
        for found in self._in(ProposalPhase.ROLLBACK_FAILED, before):
            record = record_of(found)
            subject = messages.failure_of(record.id)
            yield messages.rollback_failed(
                record,
                why=why_of(found),
                place=self._place,
                round=self._sender.rounds(subject),
                now=now,
            )
        yield from self._happened(now)

    def _closed(self, now: datetime) -> Iterator[Notice]:
        """Close what is open and asked for no more, or whose proposal is there no more."""
        if not self._caches.knows(PROPOSALS):
            return
        for subject in self._sender.opened():
            key, failing = parted(subject)
            body, rounds = self._caches.get(PROPOSALS, key), self._sender.rounds(subject)
            if body is None:
                last = self._sender.last_opening(subject)
                if last is not None:
                    yield messages.gone(last, round=rounds, now=now)
                continue
            found = _read(body)
            if found is None or found.status.phase is _OPEN[failing]:
                continue
            phase, record = found.status.phase.value, record_of(found)
            if failing:
                yield messages.rollback_done(
                    record, phase=phase, place=self._place, round=rounds, now=now
                )
            else:
                yield messages.settled(
                    record, phase=phase, by=_by(found), place=self._place, round=rounds, now=now
                )

    def _happened(self, now: datetime) -> Iterator[Notice]:
        """Say what pods run, and run no more, since there are channels, and not of long ago."""
        since = max(self._sender.begun, now - _NEWS_FOR)
        for phase in (ProposalPhase.WATCHING, ProposalPhase.PROMOTED, ProposalPhase.ROLLED_BACK):
            for body in self._caches.by(PROPOSALS, BY_PHASE, phase.value) or ():
                if not _is_news(body, since):  # asked before it is read: there may be thousands
                    continue
                found = _read(body)
                step = _step(found, phase) if found is not None else None
                if found is None or step is None or step.at < since:
                    continue
                record = record_of(found)
                if phase is not ProposalPhase.ROLLED_BACK:
                    yield messages.swapped(record, place=self._place, now=now)
                    continue
                why = why_of(found)
                yield messages.rolled_back(
                    record,
                    why=why,
                    pages=why.startswith(_PAGES),
                    number=1,
                    place=self._place,
                    now=now,
                )

    def _in(
        self, phase: ProposalPhase, before: dict[str, tuple[str, SwapProposal]]
    ) -> Iterator[SwapProposal]:
        """Yield the proposals in a phase; what has not changed since the last look is not read."""
        for body in self._caches.by(PROPOSALS, BY_PHASE, phase.value) or ():
            key, version = key_of(body), str(body["metadata"].get("resourceVersion", ""))
            known = before.get(key)
            found = known[1] if known is not None and known[0] == version else _read(body)
            if found is not None:
                self._known[key] = (version, found)
                yield found


def record_of(found: SwapProposal) -> Proposal:
    """Return a proposal as messages name it: by what people and buttons say of it."""
    key = f"{found.metadata.namespace}/{found.metadata.name}"
    return found.stage_proposal().model_copy(update={"id": key})


def gate_of(found: SwapProposal, *, now: datetime) -> GateDecision | None:
    """Return the gate's last answer; None before it was asked."""
    gate = found.status.gate
    if gate is None:
        return None
    return GateDecision(
        proposal=f"{found.metadata.namespace}/{found.metadata.name}",
        digest=found.spec.artifact.digest,
        state=gate.state,
        reason=gate.reason,
        policy=gate.policy,
        policy_digest=gate.policy_digest,
        gate=gate.name,
        required=gate.required,
        received=gate.received,
        missing=gate.missing,
        missing_from=gate.missing_from,
        evaluated_at=now,
    )


def parted(subject: str) -> tuple[str, bool]:
    """Return the proposal of a subject, and whether it is a failing rollback.

    Examples
    --------
    >>> parted("serving/swp-1"), parted(messages.failure_of("serving/rollback"))
    (('serving/swp-1', False), ('serving/rollback', True))
    """
    failing = subject.count("/") > 1
    return (subject.rpartition("/")[0], True) if failing else (subject, False)


def why_of(found: SwapProposal) -> str:
    """Return why a proposal is where it is."""
    return ": ".join(text for text in (found.status.reason, found.status.detail) if text)


def _read(body: Obj) -> SwapProposal | None:
    try:
        found = read(SwapProposal, body)
    except UnreadableInput as error:  # nothing is swapped for it either
        log.error("%s", error)
        return None
    metadata = found.metadata
    fits = len(f"{metadata.namespace}/{metadata.name}") <= _LONGEST_KEY
    return found if fits and metadata.creation_timestamp is not None else None


def _is_news(body: Obj, since: datetime) -> bool:
    history = body.get("status", {}).get("history") or [{}]
    try:
        return datetime.fromisoformat(str(history[-1].get("at"))) >= since
    except (ValueError, TypeError, AttributeError):
        return False


def _step(found: SwapProposal, phase: ProposalPhase) -> Step | None:
    """Return when it began to be watched, or had gone back."""
    wanted = phase if phase is ProposalPhase.ROLLED_BACK else ProposalPhase.WATCHING
    return next((each for each in reversed(found.status.history) if each.to is wanted), None)


def _by(found: SwapProposal) -> str:
    """Return the author of the decision that counted; empty if time or policy decided."""
    history, gate = found.status.history, found.status.gate
    last = next(
        (each for each in reversed(history) if each.from_ is ProposalPhase.AWAITING_APPROVAL), None
    )
    if last is not None and last.by != "retuned":
        return last.by
    approved = last is not None and last.to is ProposalPhase.APPROVED
    return ", ".join(gate.received) if approved and gate is not None else ""
