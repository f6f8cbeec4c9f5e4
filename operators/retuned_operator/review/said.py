"""Words that the API server has taken and no watch has brought yet.

Whoever has just spoken is shown the proposal again at once, and the copies that the page reads from
come by a watch, a moment later. Without their word on it they would think that nothing happened.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from retuned.ports import Clock
from retuned_operator.controllers import reading
from retuned_operator.runtime.resources import Obj
from retuned_operator.runtime.store import key_of

KEEP_S = 30.0
"""Seconds after which a watch has long brought it; a word that was deleted is shown no longer."""
_MOST = 256


class PendingDecisions:
    """What was said here a moment ago.

    Parameters
    ----------
    clock
        Time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[float, Obj]] = OrderedDict()

    def keep(self, body: Obj) -> None:
        """Remember a decision as the API server has returned it."""
        with self._lock:
            self._kept[key_of(body)] = (self._clock.monotonic_s(), body)
            while len(self._kept) > _MOST:
                self._kept.popitem(last=False)

    def among(self, proposal: str, known: Sequence[Obj] | None) -> Sequence[Obj] | None:
        """Return the decisions on a proposal that are known, and those that are not yet.

        Parameters
        ----------
        proposal
            Its key, ``namespace/name``.
        known
            What the copies have; None while that is not known, which nothing here makes good.
        """
        if known is None:
            return None
        now_s, names = self._clock.monotonic_s(), {key_of(body) for body in known}
        with self._lock:
            kept = list(self._kept.items())
        late = [
            body
            for name, (at_s, body) in kept
            if name not in names
            and now_s - at_s < KEEP_S
            and proposal in reading.proposal_word(body)
        ]
        return [*known, *late]
