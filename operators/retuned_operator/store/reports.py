"""Reports of sidecars in the operator's store: windows, drift and live kernels.

Also the last window of each pod: the page shows a window beside the one before it.

Kinds of records in the operator's store that several modules read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from retuned.api.agent import DefinitionPost, DriftPost, ProfileReport, TunablePost
from retuned.contract import digest_of
from retuned.ports import Spans, Store
from retuned.stages.drift import DriftAction, DriftReport
from retuned.stages.profile import WorkloadProfile, together
from retuned_operator.agent_api.ports import PodRecord, Receipt, Said
from retuned_operator.controllers.accelerators import beside_of
from retuned_operator.controllers.ports import OpenDrift
from retuned_operator.store.kernels import LiveKernels
from retuned_operator.store.tunables import PodTunables

_MOST = 4096


class LatestWindow:
    """The last window of each pod."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_pod: OrderedDict[str, str] = OrderedDict()

    def before(self, pod: str, id: str) -> str:
        """Return the previous window of a pod; empty if unknown, or if it is the same.

        Examples
        --------
        >>> newest = LatestWindow()
        >>> newest.told("pod-1", "a"); newest.told("pod-2", "b")
        >>> newest.before("pod-1", "c"), newest.before("pod-1", "a"), newest.before("pod-3", "c")
        ('a', '', '')
        """
        with self._lock:
            found = self._by_pod.get(pod, "")
        return "" if found == id else found

    def told(self, pod: str, id: str) -> None:
        """Record a window that a pod reports for the first time."""
        with self._lock:
            self._by_pod[pod] = id
            self._by_pod.move_to_end(pod)
            while len(self._by_pod) > _MOST:
                self._by_pod.popitem(last=False)


PROFILE = "pod-profile"
"""A window that a pod reported."""
DRIFT = "pod-drift"
"""A drift report of a pod."""
HYPOTHESIS = "hypothesis"
"""A hypothesis."""
SOLUTION = "solution"
"""A variant that an experiment won."""


_MAX_WINDOWS = 64


class StoreInbox:
    """The `Inbox` that lasts, and the drift in it that asks for something.

    Parameters
    ----------
    store
        Records.
    live
        Live kernels of servers.
    tunables
        Tunables of servers.
    heard
        Called with every window that a pod reports for the first time.
    spans
        What is being done, for traces.
    """

    def __init__(
        self,
        store: Store,
        *,
        live: LiveKernels,
        tunables: PodTunables,
        heard: Callable[[PodRecord, ProfileReport], None],
        spans: Spans,
    ) -> None:
        self._store = store
        self._live = live
        self._tunables = tunables
        self._heard = heard
        self._spans = spans
        self._newest = LatestWindow()

    def take(self, receipt: Receipt, said: Said) -> None:
        """Keep windows, drift and live kernels; telling them again changes nothing."""
        if isinstance(said, DefinitionPost):
            self._live.take(receipt.pod.target, said)
        if isinstance(said, TunablePost):
            self._tunables.take(receipt.pod, said, at=receipt.at)
        if isinstance(said, ProfileReport | DriftPost):
            kind = PROFILE if isinstance(said, ProfileReport) else DRIFT
            wanted = isinstance(said, ProfileReport) or said.report.action is DriftAction.RETUNE
            body: dict[str, Any] = {**said.model_dump(mode="json"), "of_gpus": receipt.pod.gpus}
            id = f"{receipt.pod.target}/{digest_of([receipt.pod.target, receipt.pod.uid, said.id])}"
            if isinstance(said, ProfileReport):
                body["before"] = self._newest.before(receipt.pod.uid, id)
            elif wanted:  # a report has the id of its window, which comes first
                window = self._store.get(PROFILE, id)
                body["before"] = window.body.get("before", "") if window is not None else ""
            phase = "new" if wanted else "noted"
            with self._heard_in(receipt, said):
                new = self._store.add(kind, id, body, phase=phase)
            if new and isinstance(said, ProfileReport):
                self._newest.told(receipt.pod.uid, id)
                self._heard(receipt.pod, said)

    def _heard_in(
        self, receipt: Receipt, said: ProfileReport | DriftPost
    ) -> AbstractContextManager[None]:
        """Open the span of a pod's drift report, whose parent is the pod's span."""
        if isinstance(said, ProfileReport):
            return nullcontext()
        about = {"target": receipt.pod.target, "pod": receipt.pod.name}
        about |= {"action": str(said.report.action), "sentence": said.report.sentence}
        return self._spans.span("heard", after=receipt.traceparent, about=about)

    def drifts(self, target: str) -> Sequence[OpenDrift]:
        """Return the reports that ask for something and are still to be answered."""
        still_open = self._store.list(DRIFT, phase="new", prefix=f"{target}/")
        if not still_open:  # as of nearly every look: windows are large, and many are kept
            return ()
        windows = self._store.list(PROFILE, prefix=f"{target}/", limit=_MAX_WINDOWS)
        first = still_open[0].created_at
        later = {
            w.id: WorkloadProfile.model_validate(w.body["profile"])
            for w in windows
            if w.created_at > first
        }
        found = []
        for stored in still_open:
            since = [w for w in windows if w.created_at > stored.created_at]
            found.append(
                OpenDrift(
                    id=stored.id,
                    report=DriftReport.model_validate(stored.body["report"]),
                    beside=beside_of(stored.body),
                    windows=tuple(later[w.id] for w in since),
                    counts=together(w.body.get("counts", {}) for w in since),
                    traceparent=stored.traceparent,
                )
            )
        return tuple(found)

    def answered(self, drifted: OpenDrift) -> None:
        """Note that a report has been answered."""
        self._store.advance(DRIFT, drifted.id, expect="new", to="answered")
