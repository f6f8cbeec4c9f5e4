"""Which window a pod has told last: the page shows a window beside the one before it.

It is held in memory, for the pods that spoke last. After a restart of the operator the first window
of each pod stands alone.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

_MOST = 4096


class LatestWindow:
    """The last window of each pod."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_pod: OrderedDict[str, str] = OrderedDict()

    def before(self, pod: str, id: str) -> str:
        """Return the window that a pod told before; empty where none is known, or it is the same.

        Examples
        --------
        >>> newest = Newest()
        >>> newest.told("pod-1", "a"); newest.told("pod-2", "b")
        >>> newest.before("pod-1", "c"), newest.before("pod-1", "a"), newest.before("pod-3", "c")
        ('a', '', '')
        """
        with self._lock:
            found = self._by_pod.get(pod, "")
        return "" if found == id else found

    def told(self, pod: str, id: str) -> None:
        """Note that a pod has told a window for the first time."""
        with self._lock:
            self._by_pod[pod] = id
            self._by_pod.move_to_end(pod)
            while len(self._by_pod) > _MOST:
                self._by_pod.popitem(last=False)
