"""What the review page is called, how it is reached, and what it signs its forms with."""

from __future__ import annotations

from dataclasses import dataclass

from retuned.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What the page is called, and what it signs with."""

    hosts: frozenset[str]
    """Names that a browser may send as ``Host``, in lower case. The site refuses other names, so
    that the domain of an attacker cannot point here."""
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
