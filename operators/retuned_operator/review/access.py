"""What a person may see: answers of the API server, cached for half a minute."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable

from retuned.errors import TemporaryError
from retuned.ports import Clock
from retuned.review.records import Person
from retuned_operator.kube.errors import ApiError
from retuned_operator.kube.resources import ACCESS_REVIEWS, PROPOSALS
from retuned_operator.review.ports import AccessReviewer

KEEP_S = 30.0
"""Seconds that an answer is cached: a person who loses a right may still read that long."""
_MOST = 4096
_RETRY_S = 5.0


class AccessReview:
    """Who may list proposals where.

    Parameters
    ----------
    api
        The API server, as the operator.
    clock
        Time.
    """

    def __init__(self, api: AccessReviewer, *, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[Person, str], tuple[float, bool]] = OrderedDict()

    def namespaces(self, viewer: Person, known: Iterable[str]) -> frozenset[str]:
        """Return those of some namespaces whose proposals a person may list.

        Raises
        ------
        TemporaryError
            If the API server does not say.
        """
        if self._may(viewer, ""):
            return frozenset(known)
        return frozenset(each for each in known if self._may(viewer, each))

    def sees(self, viewer: Person, namespace: str) -> bool:
        """Whether a person may list the proposals of a namespace."""
        return bool(namespace) and (self._may(viewer, "") or self._may(viewer, namespace))

    def _may(self, viewer: Person, namespace: str) -> bool:
        place, now_s = (viewer, namespace), self._clock.monotonic_s()
        with self._lock:
            kept = self._known.get(place)
        if kept is not None and now_s - kept[0] < KEEP_S:
            return kept[1]
        answer = self._ask(viewer, namespace)
        with self._lock:
            self._known[place] = (now_s, answer)
            self._known.move_to_end(place)
            while len(self._known) > _MOST:
                self._known.popitem(last=False)
        return answer

    def _ask(self, viewer: Person, namespace: str) -> bool:
        attributes = {
            "verb": "list",
            "group": PROPOSALS.group,
            "resource": PROPOSALS.plural,
            "namespace": namespace,
        }
        spec = {
            "user": viewer.user,
            "groups": [*viewer.groups, "system:authenticated"],
            "resourceAttributes": attributes,
        }
        try:
            answer = self._api.create(ACCESS_REVIEWS, {"metadata": {}, "spec": spec})
        except ApiError as error:
            text = f"the API server does not return your rights: {error}"
            raise TemporaryError(text, delay_s=_RETRY_S) from error
        status = answer.get("status")
        return isinstance(status, dict) and status.get("allowed") is True
