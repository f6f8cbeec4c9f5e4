"""What channels' words do in a cluster.

What people say in Slack is written in their own name, as from the review page: the API server
decides whether they may. Alerts may stop tuning and are written down; they decide nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta

from retuned.api.decision import FreezeScope, TuningFreezeSpec
from retuned.api.values import API_VERSION, ObjectMeta
from retuned.errors import Refused, UnreadableInput
from retuned.notify import inbound
from retuned.notify.inbound import Alert, Replays
from retuned.notify.slack import Pressed
from retuned.ports import Clock
from retuned.report.proposal_text import DECIDED, meaning
from retuned.review.ports import ReviewedProposal
from retuned.review.records import Act, Person
from retuned.stages.gate import DecisionKind, TuningFreeze
from retuned_operator.controllers.conditions import event_of
from retuned_operator.controllers.ports import Caches, KubernetesEvent
from retuned_operator.kube.client import Api
from retuned_operator.kube.errors import AlreadyExists, NotFound
from retuned_operator.kube.resources import EVENTS, FREEZES, PROPOSALS
from retuned_operator.kubectl.cluster_session import ClusterSession
from retuned_operator.notify_settings import ChannelSettings
from retuned_operator.proposal_notifier import record_of
from retuned_operator.review.decisions import ClusterDeciding
from retuned_operator.schema import SwapProposal, read, write
from retuned_operator.schema import TuningFreeze as FreezeObject

log = logging.getLogger(__name__)

SLACK = "slack"
_REMEMBERED = timedelta(days=30)
_ACTS = {DecisionKind.APPROVE: Act.APPROVE, DecisionKind.REJECT: Act.REJECT}


class ClusterWords:
    """What channels' words do in a cluster; see `Words`.

    Parameters
    ----------
    api
        The API server; people's words are written in their own name.
    own
        The same for what the operator writes itself; guarded by the lease.
    caches
        The cluster.
    settings
        Who is whom.
    clock
        Time.
    replays
        Remembers which alerts were written down.
    """

    def __init__(
        self,
        api: Api,
        *,
        own: Api,
        caches: Caches,
        settings: ChannelSettings,
        clock: Clock,
        replays: Replays,
    ) -> None:
        self._api = api
        self._own = own
        self._caches = caches
        self._settings = settings
        self._clock = clock
        self._replays = replays
        self._deciding = ClusterDeciding(api, clock=clock, channel=SLACK)

    def decide(self, pressed: Pressed) -> str:
        """Give a person's word as that person; see `Words.decide`."""
        actor = self._settings.slack_people.get(pressed.slack_user)
        if actor is None or pressed.word is None:
            raise Refused("no user is mapped to that Slack user")
        who = Person(user=actor.user, groups=actor.groups)
        body = self._caches.get(PROPOSALS, pressed.proposal)
        if body is None:
            raise Refused("the proposal does not exist any more")
        found = read(SwapProposal, body)
        gate = found.status.gate
        self._deciding.decide(
            who,
            pressed.proposal,
            _ACTS[pressed.word],
            seen=ReviewedProposal(
                artifact=pressed.digest, policy=gate.policy_digest if gate else None
            ),
            comment=f"by Slack user {pressed.slack_user}",
        )
        log.info("%s of %s by %s through slack", pressed.word, pressed.proposal, who.user)
        return f"{DECIDED[pressed.word]} as {who.user}: {meaning(record_of(found))}"

    def heard(self, alerts: Sequence[Alert]) -> None:
        """Stop, go on, or write down; see `Words.heard`."""
        for alert in alerts:
            self._hear(alert)

    def _hear(self, alert: Alert) -> None:
        now = self._clock.now()
        pause = timedelta(seconds=self._settings.alertmanager_pause_seconds)
        meant = inbound.meaning(alert, standing=tuple(self._standing()), pause=pause, now=now)
        if meant.freeze is not None:
            self._freeze(meant.freeze)
        for name in meant.thaw:
            try:
                self._own.delete(FREEZES, name)
            except NotFound:
                log.debug("freeze %s is gone", name)
        if meant.proposal:
            self._note(alert, meant.proposal)

    def _standing(self) -> list[TuningFreeze]:
        """Return the freezes that alerts set; those of people are left out."""
        own = self._user()
        found = []
        for body in self._caches.list(FREEZES) or ():
            try:
                freeze = read(FreezeObject, body).stage_freeze()
            except (UnreadableInput, ValueError):
                continue
            if freeze.user == own:
                found.append(freeze)
        return found

    def _freeze(self, freeze: TuningFreeze) -> None:
        sign = FreezeObject(
            api_version=API_VERSION,
            kind="TuningFreeze",
            metadata=ObjectMeta(name=freeze.id),
            spec=TuningFreezeSpec(
                scope=FreezeScope(**freeze.scope.model_dump()),
                until=freeze.until,
                reason=f"Alertmanager: {freeze.reason}"[:2048],
                user=self._user(),
            ),
        )
        body = write(sign)
        body.pop("status", None)
        try:
            self._own.create(FREEZES, body)
        except AlreadyExists:
            return
        log.warning("tuning stops until %s: %s", freeze.until, freeze.reason)

    def _note(self, alert: Alert, name: str) -> None:
        """Leave an Event beside a proposal that an alert names, once."""
        labels = (alert.labels.get(each, "") for each in ("exported_namespace", "namespace"))
        bodies = (self._caches.get(PROPOSALS, f"{each}/{name}") for each in labels if each)
        body = next((each for each in bodies if each is not None), None)
        now = self._clock.now()
        if body is None or not self._replays.use(alert.once, until=now + _REMEMBERED, now=now):
            return
        firing = alert.status == "firing"
        said = KubernetesEvent(
            resource=PROPOSALS,
            about=read(SwapProposal, body),
            reason="AlertFiring" if firing else "AlertResolved",
            note=alert.said,
            warning=firing,
            once=alert.once,
        )
        try:
            self._own.create(EVENTS, event_of(said, now=now))
        except AlreadyExists:
            log.debug("the alert was written down before")

    def _user(self) -> str:
        return ClusterSession(cluster=self._own, namespace="", now=self._clock.now()).who().user
