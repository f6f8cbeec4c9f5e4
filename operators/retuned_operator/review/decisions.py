"""A person's word in a cluster: written by the API server, in that person's name.

Words that the API server has taken and no watch has brought yet.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from retuned.control.decisions import AGREES
from retuned.errors import RetunedError, TemporaryError, UsageError
from retuned.ports import Clock
from retuned.review.ports import ReviewedProposal
from retuned.review.records import KINDS, Act, Person
from retuned.review.requests import refused
from retuned.stages.gate import utc_minute
from retuned_operator.controllers import objects
from retuned_operator.kube.errors import AlreadyExists, Unavailable
from retuned_operator.kube.informer import key_of
from retuned_operator.kube.resources import DECISIONS, PROPOSALS, Obj
from retuned_operator.kubectl.api_errors import explained
from retuned_operator.kubectl.cluster_session import ClusterSession, KubernetesUser
from retuned_operator.kubectl.decisions import check_phase, check_policy, decision_of
from retuned_operator.review.ports import ImpersonatedWriter
from retuned_operator.schema import SwapProposal, write

KEEP_S = 30.0
"""Seconds after which a watch has long brought it; a word that was deleted is shown no longer."""
_MOST = 256


class PendingDecisions:
    """Decisions that this page has just written.

    Parameters
    ----------
    clock
        Time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[float, Obj]] = OrderedDict()

    def keep(self, body: Obj) -> None:
        """Remember a decision as the API server has returned it."""
        with self._lock:
            self._kept[key_of(body)] = (self._clock.monotonic_s(), body)
            while len(self._kept) > _MOST:
                self._kept.popitem(last=False)

    def among(self, proposal: str, known: Sequence[Obj] | None) -> Sequence[Obj] | None:
        """Return the decisions on a proposal that are known, and those that are not yet.

        Parameters
        ----------
        proposal
            Its key, ``namespace/name``.
        known
            What the copies have; None while that is not known, which nothing here makes good.
        """
        if known is None:
            return None
        now_s, names = self._clock.monotonic_s(), {key_of(body) for body in known}
        with self._lock:
            kept = list(self._kept.items())
        late = [
            body
            for name, (at_s, body) in kept
            if name not in names
            and now_s - at_s < KEEP_S
            and proposal in objects.proposal_word(body)
        ]
        return [*known, *late]


_RETRY_S = 5.0


class ClusterDeciding:
    """The `Deciding` of a cluster.

    Parameters
    ----------
    api
        The API server; every request here is made in the person's name, reading included.
    clock
        Time.
    channel
        Channel of the decisions.
    said
        Remembers accepted decisions, so that the page shows them immediately; None keeps none.
    """

    def __init__(
        self,
        api: ImpersonatedWriter,
        *,
        clock: Clock,
        channel: str = "review-page",
        said: PendingDecisions | None = None,
    ) -> None:
        self._channel = channel
        self._said = said
        self._api = api
        self._clock = clock

    def decide(
        self, who: Person, key: str, act: Act, *, seen: ReviewedProposal, comment: str
    ) -> None:
        """Keep a person's word; see `Deciding.decide`."""
        namespace, _, name = key.partition("/")
        desk = ClusterSession(
            cluster=self._api.acting_as(who.user, who.groups),
            namespace=namespace,
            now=self._clock.now(),
        )
        try:
            self._say(
                desk, KubernetesUser(user=who.user, groups=who.groups), name, act, seen, comment
            )
        except Unavailable as error:
            text = f"the cluster does not answer now: {error}"
            raise TemporaryError(text, delay_s=_RETRY_S) from error

    def _say(
        self,
        desk: ClusterSession,
        who: KubernetesUser,
        name: str,
        act: Act,
        seen: ReviewedProposal,
        comment: str,
    ) -> None:
        found = desk.one(PROPOSALS, SwapProposal, name, namespace=desk.namespace) if name else None
        if found is None:
            raise UsageError("the proposal does not exist any more")
        artifact = found.spec.artifact.digest
        if artifact != seen.artifact:
            raise refused(
                "not-what-was-shown",
                f"the artifact is {artifact} by now, not the one that you were shown",
            )
        kind, gate = KINDS[act], found.status.gate
        check_phase(found, kind, back=act is Act.ROLLBACK)
        if kind in AGREES:
            _check_time(found, desk)
            if (gate.policy_digest if gate else None) != seen.policy:
                raise refused(
                    "not-what-was-shown",
                    "another policy is in force than the one that you were shown",
                )
            gate = check_policy(found, desk.policy(found), kind=kind, comment=comment)
        word = decision_of(found, who, kind=kind, comment=comment, gate=gate, channel=self._channel)
        body = write(word)
        body.pop("status", None)
        with explained("create", DECISIONS, namespace=desk.namespace):
            try:
                taken = desk.cluster.create(DECISIONS, body)
            except AlreadyExists:
                return  # the same decision was written before
        if self._said is not None:
            self._said.keep(taken)


def _check_time(found: SwapProposal, desk: ClusterSession) -> None:
    expires_at = found.spec.expires_at
    if desk.now >= expires_at:
        error: RetunedError = refused(
            "expired",
            f"the proposal expired at {utc_minute(expires_at)}; if the win "
            "still holds it is proposed again",
        )
        raise error
