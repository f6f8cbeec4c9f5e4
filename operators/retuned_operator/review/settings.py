"""The review page of an operator: its settings and its parts."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from starlette.types import ASGIApp

from retuned.errors import UnreadableInput
from retuned.files import read_plain
from retuned.ports import Clock
from retuned.review.app import Pages
from retuned.review.requests import Guard
from retuned.review.settings import Site
from retuned_operator.controllers.ports import Caches
from retuned_operator.kube.client import Api
from retuned_operator.review.access import AccessReview
from retuned_operator.review.decisions import ClusterDeciding, PendingDecisions
from retuned_operator.review.ports import ReviewStore
from retuned_operator.review.proxy_auth import Proxy, ProxyAuthenticator
from retuned_operator.review.source import ClusterReview
from retuned_operator.settings import PersonName, read_part

_MAX_SECRET = 4096
_OPEN = frozenset({"/healthz"})
_HOST = re.compile(r"[a-z0-9.-]{1,253}(:[0-9]{1,5})?")


def _host(value: str) -> str:
    if not _HOST.fullmatch(value):
        raise ValueError("a host is written in lower case, such as tuning.example.com")
    return value


_Header = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")]


class ReviewSettings(BaseModel):
    """Address of the page, and the proxy that it trusts."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, use_attribute_docstrings=True
    )

    hosts: tuple[Annotated[str, AfterValidator(_host)], ...] = Field(min_length=1, max_length=16)
    """Names by which browsers reach it, with a port where it is not 443."""
    place: str = Field(default="cluster", max_length=100)
    """What this cluster is called on the page."""
    secret_file: Path | None = None
    """File with the secret that the proxy sends; None asks for none."""
    proxy_addresses: tuple[str, ...] = ()
    """Networks that the proxy comes from; empty is any, and then there must be a secret."""
    user_header: _Header = "X-Forwarded-User"
    """Header with the person's name."""
    groups_header: _Header = "X-Forwarded-Groups"
    """Header with the person's groups, separated by commas."""
    user_prefix: str = Field(default="", max_length=64)
    """What the API server puts before names of the same login."""
    groups_prefix: str = Field(default="", max_length=64)
    """What the API server puts before groups of the same login."""
    groups: tuple[PersonName, ...] = Field(default=(), max_length=256)
    """Groups that the operator may speak for, as its role allows."""
    gpu_hour_usd: float | None = Field(default=None, ge=0.0)
    """Price of an hour of one accelerator; None shows no money."""


def review_settings(given: object) -> ReviewSettings:
    """Read the part ``review`` of the file.

    Raises
    ------
    UsageError
        With each thing that is wrong.
    """
    return read_part(ReviewSettings, given, where="review")


def review_app(
    settings: ReviewSettings,
    api: Api,
    *,
    caches: Caches,
    shelf: ReviewStore,
    clock: Clock,
    gpu_resources: Collection[str] = (),
) -> ASGIApp:
    """Return the page as an ASGI application.

    Parameters
    ----------
    api
        The API server, without the leader's guard: the page writes decisions of people.
    gpu_resources
        Names of the resources that are accelerators.

    Raises
    ------
    UsageError
        If neither secret nor addresses prove the proxy.
    UnreadableInput
        If the secret cannot be read.
    """
    secret = _secret(settings.secret_file)
    proxy = Proxy(
        secret=secret,
        addresses=settings.proxy_addresses,
        user_header=settings.user_header.lower(),
        groups_header=settings.groups_header.lower(),
        user_prefix=settings.user_prefix,
        groups_prefix=settings.groups_prefix,
    )
    hosts, said = frozenset(settings.hosts), PendingDecisions(clock)
    pages = Pages(
        ClusterReview(
            caches,
            shelf,
            AccessReview(api, clock=clock),
            said,
            clock=clock,
            place=settings.place,
            usd_per_gpu_hour=settings.gpu_hour_usd,
            gpu_resources=gpu_resources,
        ),
        ClusterDeciding(api, clock=clock, said=said),
        ProxyAuthenticator(proxy, groups=frozenset(settings.groups)),
        site=Site(hosts=hosts, secure=True, key=_form_key(secret)),
        clock=clock,
    )
    return Guard(pages.app(), hosts=hosts, open_paths=_OPEN)


def _secret(path: Path | None) -> bytes:
    if path is None:
        return b""
    try:
        found = read_plain(path, max_bytes=_MAX_SECRET)
    except (OSError, ValueError) as error:
        message = f"the proxy's secret cannot be read ({error})"
        raise UnreadableInput("secret-unreadable", where=str(path), message=message) from error
    if found is None or not found.strip():
        message = f"the proxy's secret is empty or longer than {_MAX_SECRET} bytes"
        raise UnreadableInput("secret-unreadable", where=str(path), message=message)
    return found.strip()


def _form_key(secret: bytes) -> bytes:
    """Return what forms are signed with: the same after a change of leader where it can be."""
    if not secret:
        return os.urandom(32)
    return hmac.new(secret, b"retuned review forms v1", hashlib.sha256).digest()
