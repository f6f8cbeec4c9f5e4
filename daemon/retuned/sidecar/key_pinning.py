"""The keys that must sign artifacts: the configured ones, or the first that the operator sent.

The operator sends its key over TLS, under a name that the cluster's authority has certified. The
sidecar accepts the first key and stores it: anyone who gets the address later cannot replace it.
With keys from the injection the sidecar accepts none from the operator.
"""

from __future__ import annotations

import logging

from retuned.errors import CandidateError, TemporaryError
from retuned.ports import Store
from retuned.runtime.artifacts.trust import Trust
from retuned.runtime.schema import Refused

log = logging.getLogger(__name__)

_KIND, _ID = "self", "key"
_RETRY_S = 30.0


class PinnedKeys:
    """Keys that are trusted.

    Parameters
    ----------
    store
        Where the pinned key is kept.
    configured
        As ``RETUNED_TRUSTED_KEY``; empty pins the first key that the operator shows.
    """

    def __init__(self, store: Store, *, configured: str = "") -> None:
        self._store = store
        self._configured = configured.strip()

    def shown(self, key: str) -> None:
        """Take the key that the operator shows, if it is the first and none is configured."""
        if self._configured or not key:
            return
        if self._store.add(_KIND, _ID, {"key": key}, phase="current"):
            log.info("artifacts must be signed with %s from now on", key)
        elif self._pinned() != key:
            log.error("the operator sends another key, %s; restart the pod to trust it", key)

    def trust(self) -> Trust:
        """Return what artifacts are checked with.

        Raises
        ------
        TemporaryError
            If no key is known: unverified artifacts are never loaded.
        """
        sources = self._configured or self._pinned()
        if not sources:
            raise TemporaryError("no key is known to check artifacts with", delay_s=_RETRY_S)
        return Trust(sources)

    def shown_to_servers(self) -> str:
        """Return a key that a server may pin, hex; see `RuntimeSocket`.

        Raises
        ------
        TemporaryError
            If none is known.
        CandidateError
            If the configured keys cannot be used.
        """
        try:
            keys = self.trust().keys()
        except Refused as error:
            raise CandidateError(error.reason, detail=error.detail) from error
        if not keys:
            raise TemporaryError("no key is known to show to the server", delay_s=_RETRY_S)
        return next(iter(keys.values())).hex()

    def _pinned(self) -> str:
        stored = self._store.get(_KIND, _ID)
        return str(stored.body["key"]) if stored is not None else ""
