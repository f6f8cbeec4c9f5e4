"""The pages' requests: GET shows, POST takes one person's word, everything else is refused."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from retuned.contract import Digest
from retuned.errors import (
    MissingDependency,
    RetunedError,
    TemporaryError,
    UnreadableInput,
    UsageError,
)
from retuned.ports import Clock
from retuned.stages.watch import METHOD, total
from retuned.web import rendering
from retuned.web.figures import change_figure, drift_figure, kernels_figure, months_figure
from retuned.web.forms import form_of, same_site
from retuned.web.ports import Deciding, Door, ReviewSource, Seen, Visit
from retuned.web.records import Act, Found, Person, Row, Slice, Standing
from retuned.web.refusing import STATUS, refused
from retuned.web.tokens import Shown, fault_of, sign
from retuned.web.views import RowView, proposal_view, row_view

log = logging.getLogger(__name__)

PAGE = 50
"""Entries of a list on one page."""
_IN_MOTION = (Standing.OPEN, Standing.AGREED, Standing.UNDER_WAY)
_DRIFTS = 100
_SIGNATURES = 60
_SESSION = re.compile(r"[A-Za-z0-9_-]{43}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_KEY_MAX = 400
MAX_COMMENT = 4_000
"""Longest reason that a decision's record takes, characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What the page is called, and what it signs with."""

    hosts: frozenset[str]
    """Names that a browser may ask for, as in ``Host``, in lower case; another name is refused, so
    that nobody's own domain can point here."""
    secure: bool = False
    """Whether browsers reach it by HTTPS."""
    key: bytes = b""
    """Signs forms; at least 32 bytes. Several that serve the same page share it."""

    def __post_init__(self) -> None:
        if len(self.key) < 32:
            raise UsageError("the key that signs forms has at least 32 bytes")

    @property
    def origins(self) -> frozenset[str]:
        """Where forms may come from."""
        scheme = "https" if self.secure else "http"
        return frozenset(f"{scheme}://{host}" for host in self.hosts)

    @property
    def cookie(self) -> str:
        """Name of the session's cookie."""
        return "__Host-retuned-review" if self.secure else "retuned-review"


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
        self, source: ReviewSource, deciding: Deciding, door: Door, *, site: Site, clock: Clock
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
                RetunedError: self._failed,
                HTTPException: self._not_here,
                Exception: self._broken,
            },
        )

    # --- what is shown ----------------------------------------------------------------------------

    def inbox(self, request: Request) -> Response:
        """Show what waits and what is under way."""
        who, part = self._who(request), _slice(request)
        found = self._source.proposals(who, part, standing=_IN_MOTION)
        back: Found[Row] = Found(rows=())
        if not part.before:  # what goes back concerns everybody, however much waits
            back = self._source.proposals(who, part, standing={Standing.GOING_BACK})
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
        return self._list(request, "in-force.html", standing=Standing.IN_PLACE)

    def past(self, request: Request) -> Response:
        """Show what has ended."""
        return self._list(request, "past.html", standing=Standing.ENDED)

    def _list(self, request: Request, name: str, *, standing: Standing) -> Response:
        who = self._who(request)
        found = self._source.proposals(who, _slice(request), standing={standing})
        return self._page(request, who, name, found=found, rows=self._rows(found.rows))

    def proposal(self, request: Request) -> Response:
        """Show one proposal, with forms that carry tokens."""
        who, key = self._who(request), _key(request)
        case = self._source.case(who, key)
        if case is None:
            raise HTTPException(404, "There is no such proposal, or you may not see it.")
        session = self._session(request)
        gate = case.row.gate
        policy = gate.policy_digest if gate and gate.policy_digest else ""
        artifact = case.row.proposal.artifact
        now = self._clock.now()
        # the key that the form is sent to: links of alerts may name the proposal in another way
        key = case.row.key
        shown = Shown(session=session, user=who.user, key=key, artifact=artifact, policy=policy)
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
        """Show swaps and ways back."""
        who = self._who(request)
        return self._page(
            request, who, "swaps.html", found=self._source.swaps(who, _slice(request))
        )

    def drifts(self, request: Request) -> Response:
        """Show drift reports, and plots of one server: lines through several mean nothing."""
        who = self._who(request)
        found = self._source.drifts(who, _slice(request, limit=_DRIFTS))
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
        found = self._source.window(who, _key(request))
        if found is None:
            raise HTTPException(404, "There is no such window, or you may not see it.")
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

    # --- what is said -----------------------------------------------------------------------------

    async def decide(self, request: Request) -> Response:
        """Take a person's word, if the form proves that this person was shown this artifact."""
        same_site(_headers(request), origins=self._site.origins)
        form = await form_of(request)
        who, key = await run_in_threadpool(self._who, request), _key(request)
        act, seen = _act(form), _seen(form)
        shown = Shown(
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

    def _check(self, token: str, shown: Shown) -> None:
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
            Visit(
                headers=_headers(request),
                client=_place(request.scope.get("client")),
                server=_place(request.scope.get("server")),
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
        response = _html(text)
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

    def _failed(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, RetunedError), "registered for it"
        status = STATUS.get(error.code, 409)
        if isinstance(error, TemporaryError | MissingDependency):
            status = 503
        elif isinstance(error, UsageError):
            status = 422
        elif isinstance(error, UnreadableInput):
            status = 500
            log.error("review page: %s", error)
        said = error.message[:1].upper() + error.message[1:]
        return self._message(request, status, said, code=error.code)

    def _not_here(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException), "registered for it"
        said = error.detail
        if error.status_code == 405:
            said = "This address shows, or takes a form; it does nothing else."
        return self._message(request, error.status_code, said, code="", headers=error.headers or {})

    def _broken(self, request: Request, error: Exception) -> Response:
        log.error("review page: %s %s", request.method, request.url.path, exc_info=error)
        return self._message(request, 500, "Something went wrong here; see the log.", code="failed")

    def _message(
        self,
        request: Request,
        status: int,
        said: str,
        *,
        code: str,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        key = request.path_params.get("key", "") if request.method == "POST" else ""
        text = rendering.render(
            "message.html", path=request.url.path, said=said, code=code, key=str(key)[:_KEY_MAX]
        )
        answer = _html(text, status=status)
        answer.headers.update(headers or {})
        return answer


def _html(text: str, *, status: int = 200) -> HTMLResponse:
    return HTMLResponse(text, status_code=status, headers={"cache-control": "no-store"})


def _headers(request: Request) -> dict[str, str]:
    """Return the headers; one that is sent twice is not believed, whichever is meant."""
    found: dict[str, str] = {}
    twice: set[str] = set()
    for name, value in request.headers.items():
        if name in found:
            twice.add(name)
        found[name] = value
    return {name: value for name, value in found.items() if name not in twice}


def _place(found: object) -> tuple[str, int]:
    """Return address and port of an end of the connection; of another kind of socket neither."""
    if not isinstance(found, tuple | list) or not isinstance(found[1], int):
        return "", 0
    return str(found[0]), found[1]


def _key(request: Request) -> str:
    key = str(request.path_params["key"])
    if not 0 < len(key) <= _KEY_MAX or not key.isprintable():
        raise HTTPException(404, "There is no such address.")
    return key


def _slice(request: Request, *, limit: int = PAGE) -> Slice:
    before = request.query_params.get("before", "")
    if len(before) > _KEY_MAX or not (before.isprintable() or not before):
        raise HTTPException(404, "There is no such part of the list.")
    return Slice(before=before, limit=limit)


def _act(form: Mapping[str, str]) -> Act:
    try:
        return Act(form.get("act", ""))
    except ValueError:
        raise UsageError("the form does not say what is decided; load the page again") from None


def _seen(form: Mapping[str, str]) -> Seen:
    artifact, policy = form.get("artifact", ""), form.get("policy", "")
    if not _DIGEST.fullmatch(artifact) or not (policy == "" or _DIGEST.fullmatch(policy)):
        raise UsageError("the form names no artifact; load the page again")
    digest: Digest | None = policy or None
    return Seen(artifact=artifact, policy=digest)
