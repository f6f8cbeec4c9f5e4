"""The pages' requests: GET shows, POST takes one person's word, everything else is refused."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from retuned.errors import RetunedError, UsageError
from retuned.ports import Clock
from retuned.review import html as rendering
from retuned.review.errors import broken, failed, html, not_here
from retuned.review.figures import change_figure, drift_figure, kernels_figure, months_figure
from retuned.review.ports import Authenticator, Deciding, RequestInfo, ReviewSource
from retuned.review.records import Person, ResultPage, ReviewPhase, Row
from retuned.review.requests import (
    FormToken,
    act_of,
    fault_of,
    form_of,
    headers_of,
    key_of,
    place_of,
    refused,
    same_site,
    seen_of,
    sign,
    slice_of,
)
from retuned.review.settings import Site
from retuned.review.views import RowView, proposal_view, row_view
from retuned.stages.watch import METHOD, total

log = logging.getLogger(__name__)

PAGE = 50
"""Entries of a list on one page."""
_IN_MOTION = (ReviewPhase.OPEN, ReviewPhase.AGREED, ReviewPhase.UNDER_WAY)
_DRIFTS = 100
_SIGNATURES = 60
_SESSION = re.compile(r"[A-Za-z0-9_-]{43}")
MAX_COMMENT = 4_000
"""Longest reason that a decision's record takes, characters."""


class Pages:
    """The requests over one source.

    Parameters
    ----------
    source, deciding, door
        Facts, words, and who comes.
    site
        What it is called.
    clock
        Time.
    """

    def __init__(
        self,
        source: ReviewSource,
        deciding: Deciding,
        door: Authenticator,
        *,
        site: Site,
        clock: Clock,
    ) -> None:
        self._source = source
        self._deciding = deciding
        self._door = door
        self._site = site
        self._clock = clock

    def app(self) -> Starlette:
        """Return the ASGI application."""
        routes = [
            Route("/", self.inbox),
            Route("/in-force", self.in_force),
            Route("/past", self.past),
            Route("/swaps", self.swaps),
            Route("/drift", self.drifts),
            Route("/drift/{key:path}", self.window),
            Route("/savings", self.savings),
            Route("/proposals/{key:path}", self.proposal, methods=["GET"]),
            Route("/proposals/{key:path}", self.decide, methods=["POST"]),
            Route("/style.css", self.style),
            Route("/icon.svg", self.icon),
            Route("/healthz", self.healthy),
        ]
        return Starlette(
            routes=routes,
            exception_handlers={
                RetunedError: failed,
                HTTPException: not_here,
                Exception: broken,
            },
        )

    # --- what is shown ----------------------------------------------------------------------------

    def inbox(self, request: Request) -> Response:
        """Show what waits and what is under way."""
        who, part = self._who(request), slice_of(request, limit=PAGE)
        found = self._source.proposals(who, part, standing=_IN_MOTION)
        back: ResultPage[Row] = ResultPage(rows=())
        if not part.before:  # every reader needs to see rollbacks, however many proposals wait
            back = self._source.proposals(who, part, standing={ReviewPhase.GOING_BACK})
        return self._page(
            request,
            who,
            "inbox.html",
            found=found,
            rows=self._rows(found.rows),
            back=self._rows(back.rows),
        )

    def in_force(self, request: Request) -> Response:
        """Show what runs now."""
        return self._list(request, "in-force.html", standing=ReviewPhase.IN_PLACE)

    def past(self, request: Request) -> Response:
        """Show what has ended."""
        return self._list(request, "past.html", standing=ReviewPhase.ENDED)

    def _list(self, request: Request, name: str, *, standing: ReviewPhase) -> Response:
        who = self._who(request)
        found = self._source.proposals(who, slice_of(request, limit=PAGE), standing={standing})
        return self._page(request, who, name, found=found, rows=self._rows(found.rows))

    def proposal(self, request: Request) -> Response:
        """Show one proposal, with forms that carry tokens."""
        who, key = self._who(request), key_of(request)
        case = self._source.case(who, key)
        if case is None:
            raise HTTPException(404, "This proposal does not exist, or you may not see it.")
        session = self._session(request)
        gate = case.row.gate
        policy = gate.policy_digest if gate and gate.policy_digest else ""
        artifact = case.row.proposal.artifact
        now = self._clock.now()
        # the key that the form is sent to: links of alerts may name the proposal in another way
        key = case.row.key
        shown = FormToken(session=session, user=who.user, key=key, artifact=artifact, policy=policy)
        return self._page(
            request,
            who,
            "proposal.html",
            session=session,
            view=proposal_view(case, now=now),
            token=sign(shown, key=self._site.key, now=now),
            policy=policy,
        )

    def swaps(self, request: Request) -> Response:
        """Show swaps and rollbacks."""
        who = self._who(request)
        return self._page(
            request, who, "swaps.html", found=self._source.swaps(who, slice_of(request, limit=PAGE))
        )

    def drifts(self, request: Request) -> Response:
        """Show drift reports, and plots of one server: lines through several mean nothing."""
        who = self._who(request)
        found = self._source.drifts(who, slice_of(request, limit=_DRIFTS))
        servers = tuple(dict.fromkeys(line.target for line in found.rows))
        asked = request.query_params.get("server", "")
        chosen = asked if asked in servers else next(iter(servers), "")
        lines = [line for line in found.rows if line.target == chosen]
        return self._page(
            request,
            who,
            "drifts.html",
            found=found,
            servers=servers,
            chosen=chosen,
            distance=drift_figure(lines, "distance"),
            cusum=drift_figure(lines, "cusum"),
        )

    def window(self, request: Request) -> Response:
        """Show one window of the workload."""
        who = self._who(request)
        found = self._source.window(who, key_of(request))
        if found is None:
            raise HTTPException(404, "This window does not exist, or you may not see it.")
        profile, before = found.profile, found.before
        return self._page(
            request,
            who,
            "window.html",
            window=found,
            kernels=kernels_figure(profile) if profile else None,
            changes=change_figure(before, profile) if profile and before else None,
            stats=profile.stats[:_SIGNATURES] if profile else (),
        )

    def savings(self, request: Request) -> Response:
        """Show what was spent and saved."""
        who = self._who(request)
        accounts = self._source.accounts(who)
        return self._page(
            request,
            who,
            "savings.html",
            accounts=accounts,
            total=total(accounts),
            months=months_figure(accounts),
            method=METHOD,
        )

    def style(self, _request: Request) -> Response:
        """Return the style sheet."""
        headers = {"cache-control": "max-age=86400"}
        return Response(rendering.style(), media_type="text/css", headers=headers)

    def icon(self, _request: Request) -> Response:
        """Return the icon."""
        headers = {"cache-control": "max-age=86400"}
        return Response(rendering.ICON, media_type="image/svg+xml", headers=headers)

    def healthy(self, _request: Request) -> Response:
        """Say that it serves."""
        return PlainTextResponse("ok\n")

    # --- decisions --------------------------------------------------------------------------------

    async def decide(self, request: Request) -> Response:
        """Record a decision, if the form proves that this person was shown this artifact."""
        same_site(headers_of(request), origins=self._site.origins)
        form = await form_of(request)
        who, key = await run_in_threadpool(self._who, request), key_of(request)
        act, seen = act_of(form), seen_of(form)
        shown = FormToken(
            session=request.cookies.get(self._site.cookie, ""),
            user=who.user,
            key=key,
            artifact=seen.artifact,
            policy=seen.policy or "",
        )
        self._check(form.get("token", ""), shown)
        comment = form.get("comment", "").replace("\r\n", "\n").strip()
        if len(comment) > MAX_COMMENT:
            raise UsageError(f"the comment is longer than {MAX_COMMENT} characters; shorten it")
        await run_in_threadpool(self._deciding.decide, who, key, act, seen=seen, comment=comment)
        log.info("%s of %s by %s on the review page", act, key, who.user)
        return RedirectResponse(f"/proposals/{rendering.path_of(key)}#said", status_code=303)

    def _check(self, token: str, shown: FormToken) -> None:
        now = self._clock.now()
        fault = fault_of(token, shown, key=self._site.key, now=now)
        if not _SESSION.fullmatch(shown.session):
            fault = fault or "no-session"
        if fault == "too-old":
            raise refused("form-too-old", "the page was loaded too long ago; load it again")
        if fault is not None:
            raise refused(
                "not-what-was-shown",
                "the form does not prove that you were shown this artifact (another person, "
                "another browser, or the page was served by an earlier start); load it again",
            )

    # --- within -----------------------------------------------------------------------------------

    def _who(self, request: Request) -> Person:
        return self._door.who(
            RequestInfo(
                headers=headers_of(request),
                client=place_of(request.scope.get("client")),
                server=place_of(request.scope.get("server")),
            )
        )

    def _rows(self, rows: Sequence[Row]) -> list[RowView]:
        now = self._clock.now()
        return [row_view(row, now=now) for row in rows]

    def _session(self, request: Request) -> str:
        found = request.cookies.get(self._site.cookie, "")
        return found if _SESSION.fullmatch(found) else secrets.token_urlsafe(32)

    def _page(
        self, request: Request, who: Person, name: str, *, session: str = "", **values: object
    ) -> Response:
        text = rendering.render(
            name,
            path=request.url.path,
            viewer=who,
            overview=self._source.overview(who),
            now=self._clock.now(),
            **values,
        )
        response = html(text)
        if session:
            response.set_cookie(
                self._site.cookie,
                session,
                httponly=True,
                samesite="strict",
                secure=self._site.secure,
                path="/",
            )
        return response
