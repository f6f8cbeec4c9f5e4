"""Users of the review page, named by an authenticated proxy. Other requests are refused."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from retuned.errors import UsageError
from retuned.review.ports import RequestInfo
from retuned.review.records import Person
from retuned.review.requests import refused

_MAX_GROUPS = 64
_MAX_NAME = 256
SECRET_HEADER = "x-retuned-proxy-secret"
"""Where a proxy that can set headers sends the secret; others use HTTP Basic, any user's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """The trusted proxy, and the names of its headers."""

    secret: bytes = b""
    """What it shares with us; empty asks for none."""
    addresses: tuple[str, ...] = ()
    """Networks that it comes from, such as ``10.0.3.0/24``; empty is any."""
    user_header: str = "x-forwarded-user"
    """Header with the person's name, in lower case."""
    groups_header: str = "x-forwarded-groups"
    """Header with groups, separated by commas, in lower case."""
    user_prefix: str = ""
    """What the API server puts before names from the same login, such as ``oidc:``."""
    groups_prefix: str = ""
    """The same for groups."""

    def __post_init__(self) -> None:
        if not self.secret and not self.addresses:
            raise UsageError("the review page needs a proxy's secret, its addresses, or both")
        if self.secret and len(self.secret) < 16:
            raise UsageError("the proxy's secret has at least 16 bytes")
        for text in self.addresses:
            try:
                ipaddress.ip_network(text)
            except ValueError as error:
                raise UsageError(
                    f"the proxy's address {text!r:.60} is not a network: {error}"
                ) from None


class ProxyAuthenticator:
    """The `Door` behind a proxy that logs people in.

    Parameters
    ----------
    proxy
        Which one.
    groups
        Groups that the page may impersonate; it ignores others, which could give rights in the
        cluster. The list is short and equal to what the role allows.
    """

    def __init__(self, proxy: Proxy, *, groups: frozenset[str]) -> None:
        self._proxy = proxy
        self._networks = [ipaddress.ip_network(each) for each in proxy.addresses]
        self._groups = groups

    def who(self, visit: RequestInfo) -> Person:
        """Return whom the proxy has logged in; see `Door.who`."""
        if not self._is_proxy(visit):
            raise refused(
                "not-known",
                "open this page through the proxy that logs people in",
            )
        user = self._proxy.user_prefix + visit.headers.get(self._proxy.user_header, "").strip()
        if user == self._proxy.user_prefix:
            raise refused("not-known", "the proxy sends no user name; log in again")
        said = visit.headers.get(self._proxy.groups_header, "").split(",")[:_MAX_GROUPS]
        prefix = self._proxy.groups_prefix
        groups = {prefix + each.strip() for each in said if each.strip()} & self._groups
        for name in (user, *groups):
            _check(name)
        return Person(user=user, groups=tuple(sorted(groups)))

    def _is_proxy(self, visit: RequestInfo) -> bool:
        secret = self._proxy.secret
        if secret and not hmac.compare_digest(_secret_in(visit.headers), secret):
            return False
        if not self._networks:
            return True
        try:
            address = ipaddress.ip_address(visit.client[0])
        except ValueError:
            return False
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self._networks)


def _secret_in(headers: Mapping[str, str]) -> bytes:
    if SECRET_HEADER in headers:
        return headers[SECRET_HEADER].encode("latin-1", "replace")
    scheme, _, coded = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return b""
    try:
        return base64.b64decode(coded, validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""


def _check(name: str) -> None:
    """Refuse names that are Kubernetes' own, and those that could be more than a name."""
    if not (name.isascii() and name.isprintable()) or len(name) > _MAX_NAME:
        raise refused("not-known", "the user's name from the proxy is not short printable ASCII")
    if name.lower().startswith("system:"):
        raise refused("not-known", "names that begin with system: belong to the cluster itself")
