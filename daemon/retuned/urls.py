"""Addresses that people set: what may be one, and what may be sent there."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from retuned.errors import UsageError

MAX_URL = 2000
"""Longest address."""


def check_url(
    url: str, *, what: str, secret: bool, hosts: Collection[str] = (), query: bool = False
) -> None:
    """Check an address.

    Parameters
    ----------
    what
        What it is called, for the message.
    secret
        Whether something secret goes there, or is part of it: then over https only.
    hosts
        Other machines that may be sent secrets in the clear.
    query
        Whether it may have a query.

    Raises
    ------
    UsageError
        If it is not a plain http or https address, or a secret would be sent in the clear.

    Examples
    --------
    >>> check_url("http://127.0.0.1:9093", what="alertmanager_url", secret=True)
    >>> check_url("http://elsewhere.example", what="alertmanager_url", secret=True)
    Traceback (most recent call last):
    ...
    retuned.errors.UsageError: alertmanager_url: a key is sent over https only, or to this very machine
    """  # noqa: E501 - a doctest's line
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"{what}: cannot be read: {error}") from error
    if parts.scheme not in ("http", "https") or not host:
        raise UsageError(f"{what}: must begin with http:// or https:// and name a host")
    if len(url) > MAX_URL or not url.isascii() or not url.isprintable() or " " in url:
        raise UsageError(f"{what}: holds characters that no address has, or too many")
    if parts.username or parts.password or parts.fragment or (parts.query and not query):
        raise UsageError(f"{what}: holds a user, query or fragment; keys go elsewhere")
    if secret and parts.scheme == "http" and not is_here(host) and host not in hosts:
        raise UsageError(f"{what}: a key is sent over https only, or to this very machine")


def is_here(host: str) -> bool:
    """Whether a host is this very machine.

    Examples
    --------
    >>> is_here("127.0.0.1"), is_here("[::1]".strip("[]")), is_here("10.0.0.1")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
