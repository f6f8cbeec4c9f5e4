"""TokenReviews by the API server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from retuned_operator.runtime.resources import Resource

TOKEN_REVIEWS = Resource(
    group="authentication.k8s.io",
    version="v1",
    kind="TokenReview",
    plural="tokenreviews",
    namespaced=False,
)
"""A question, not an object: nothing is kept of it."""


class Creates(Protocol):
    """The part of `retuned_operator.runtime.client.Api` that is used."""

    def create(self, resource: Resource, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask, and return the answer."""
        ...


class TokenReviews:
    """The `Tokens` port over the API server.

    Parameters
    ----------
    api
        Unguarded: who does not lead may ask as well.
    """

    def __init__(self, api: Creates) -> None:
        self._api = api

    def review(self, token: str, *, audience: str) -> Mapping[str, Any]:
        """Ask; see `Tokens.review`."""
        return self._api.create(TOKEN_REVIEWS, {"spec": {"token": token, "audiences": [audience]}})
