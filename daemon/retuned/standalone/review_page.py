"""The review page of one machine: who comes by the kernel's account, words into the store."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from retuned.contract import Solution
from retuned.errors import UsageError
from retuned.ports import Clock, Store
from retuned.review.app import Pages
from retuned.review.local_users import uid_of_peer
from retuned.review.ports import RequestInfo, ReviewedProposal
from retuned.review.records import Act, Person
from retuned.review.requests import Guard, refused
from retuned.review.roofline import roofs_of
from retuned.review.server import PageServer, names_of, place_of
from retuned.review.settings import Site
from retuned.settings import Settings
from retuned.stages.gate import DecisionKind, utc_minute
from retuned.stages.proposal import Proposal
from retuned.standalone import decisions
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.daemon import Loop
from retuned.standalone.review_source import HostFacts, ServerStatusCache, StoreReview, id_of
from retuned.store.approvals import Approvals, Identity, identity_of_uid
from retuned.store.keys import Ed25519Notary
from retuned.store.sqlite import SqliteStore

_KINDS = {Act.APPROVE: DecisionKind.APPROVE, Act.BREAK_GLASS: DecisionKind.BREAK_GLASS}


class LocalAuthenticator:
    """The `Door` of one machine: the user who opened the other end of the connection.

    Parameters
    ----------
    group_map
        Policy group by group of this machine.
    uid
        Says who opened the other end; None where that is not certain.
    """

    def __init__(
        self,
        group_map: Mapping[str, str],
        *,
        uid: Callable[[tuple[str, int], tuple[str, int]], int | None] = uid_of_peer,
    ) -> None:
        self._group_map = group_map
        self._uid = uid

    def who(self, visit: RequestInfo) -> Person:
        """Return the local user; see `Door.who`."""
        uid = self._uid(visit.client, visit.server)
        if uid is None:
            raise refused(
                "not-known",
                "this machine does not say which of its users has opened the connection; open the "
                "page in a browser on it, or forward the port with ssh",
            )
        found = identity_of_uid(uid, self._group_map)
        return Person(user=found.user, groups=found.groups)


class StoreDeciding:
    """The `Deciding` of one machine: the same as the commands do, into the same store.

    Parameters
    ----------
    store
        The state.
    clock
        Time.
    """

    def __init__(self, store: Store, *, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def decide(
        self, who: Person, key: str, act: Act, *, seen: ReviewedProposal, comment: str
    ) -> None:
        """Keep a person's word; see `Deciding.decide`."""
        stored = self._store.get(RecordKind.PROPOSAL, id_of(key))
        if stored is None:
            raise UsageError("the proposal does not exist any more")
        proposal = decisions.read_proposal(stored)
        if proposal.artifact != seen.artifact:
            raise refused(
                "not-what-was-shown",
                f"the artifact is {proposal.artifact} now, not the one that the page showed you",
            )
        voice = decisions.Actor(
            store=self._store,
            approvals=Approvals(self._store),
            who=Identity(user=who.user, groups=who.groups),
            now=self._clock.now(),
            channel="review-page",
        )
        if act in _KINDS:
            self._agree(voice, proposal, seen)
            if act is Act.BREAK_GLASS and not comment:
                raise UsageError("breaking the glass needs a reason")
            decisions.approve(voice, stored, proposal, kind=_KINDS[act], comment=comment)
        elif act is Act.REJECT:
            decisions.reject(voice, stored, proposal, comment=comment)
        elif act is Act.ABORT:
            decisions.abort(voice, stored, proposal, comment=comment)
        else:
            decisions.rollback(voice, stored, reason=comment)

    def _agree(self, voice: decisions.Actor, proposal: Proposal, seen: ReviewedProposal) -> None:
        """Refuse an agreement that came too late, or under another policy than was shown."""
        if voice.now >= proposal.expires_at:
            raise refused(
                "expired",
                f"the proposal expired at {utc_minute(proposal.expires_at)}; if "
                "the win still holds it is proposed again",
            )
        gate = decisions.gate_of(self._store, proposal.id)
        if (gate.policy_digest if gate else None) != seen.policy:
            raise refused(
                "not-what-was-shown", "another policy is in force than the one that you were shown"
            )


@contextmanager
def served(settings: Settings, loop: Loop) -> Iterator[str]:
    """Serve the page while the daemon runs, and return its address; empty if not configured.

    Raises
    ------
    UsageError
        If the setting is not an address that only this machine reaches.
    TemporaryError
        If the address is taken.
    """
    if not settings.review:
        yield ""
        return
    ctx = loop.ctx
    host, port = place_of(settings.review)
    server = PageServer(host, port)
    # a separate connection, so that readers of the page do not delay the daemon
    store = SqliteStore(settings.state_dir, clock=ctx.clock)
    try:
        names = names_of(host, server.port)
        site = Site(hosts=names, key=secrets.token_bytes(32))
        source = StoreReview(
            store,
            Ed25519Notary(settings.keys),
            machine=_machine(settings, ctx),
            clock=ctx.clock,
        )
        pages = Pages(
            source,
            StoreDeciding(store, clock=ctx.clock),
            LocalAuthenticator(settings.group_map),
            site=site,
            clock=ctx.clock,
        )
        server.start(Guard(pages.app(), hosts=names))
        yield f"http://{f'[{host}]' if ':' in host else host}:{server.port}/"
    finally:
        server.stop()
        store.close()


def _machine(settings: Settings, ctx: Context) -> HostFacts:
    def incumbent(definition: str) -> Solution | None:
        try:
            return ctx.catalog.incumbent(definition)
        except UsageError:
            return None

    return HostFacts(
        place=settings.target,
        folder=Path(settings.state_dir),
        gpus=settings.gpus,
        usd_per_gpu_hour=settings.gpu_hour_usd,
        incumbent=incumbent,
        roofs=lambda proposal, shapes, arch: roofs_of(proposal.definition, shapes, arch=arch),
        samples=ServerStatusCache(ctx.swapper.samples, clock=ctx.clock),
    )
