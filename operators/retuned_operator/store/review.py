"""The operator's store as the review page sees it: evidence, sources, windows, accounts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from pydantic import ValidationError

from retuned.contract import Digest, Solution
from retuned.errors import UnreadableInput
from retuned.ports import Store, Stored, Verifier
from retuned.review.records import DriftLine, Roofs, Window
from retuned.review.roofline import roofs_of
from retuned.stages.drift import DriftReport
from retuned.stages.profile import WorkloadProfile
from retuned.stages.watch import Account
from retuned.store.envelopes import read
from retuned_operator.controllers.accelerators import beside_of
from retuned_operator.controllers.ports import Kernels
from retuned_operator.review.ports import ReviewEvidence
from retuned_operator.schema import TuningTarget
from retuned_operator.store.experiments import read_proof
from retuned_operator.store.reports import DRIFT, PROFILE, SOLUTION
from retuned_operator.store.tables import shown_table

_PHASES = ("new", "noted", "answered")
_LOOKED_AT = 3
"""Newest windows of a target that say how busy its accelerators are."""


class StoredReviews:
    """The `ReviewStore` over the operator's store.

    Parameters
    ----------
    store
        Records and blobs.
    verifier
        Of evidence.
    kernels
        The catalog.
    accounts
        What was spent and saved.
    """

    def __init__(
        self,
        store: Store,
        verifier: Verifier,
        *,
        kernels: Kernels,
        accounts: Callable[[], Sequence[Account]] = tuple,
    ) -> None:
        self._store = store
        self._verifier = verifier
        self._kernels = kernels
        self._accounts = accounts

    def evidence(self, digest: Digest) -> ReviewEvidence:
        """Return evidence, verified."""
        found = read(self._store, self._verifier, digest)
        return ReviewEvidence(document=found.document, doubt=found.doubt)

    def proof(self, digest: Digest) -> bytes | None:
        """Return the pairs of a live proof; see `ReviewStore.proof`."""
        return read_proof(self._store, self._verifier, digest)

    def solution(self, digest: Digest) -> Solution | None:
        """Return a variant, of a table all of its rules; None where its source is not kept."""
        stored = self._store.get(SOLUTION, digest)
        if stored is None:
            return shown_table(self._store, digest)
        try:
            return Solution.model_validate(stored.body) if stored is not None else None
        except ValidationError:
            return None

    def incumbent(self, kernel: str, target: TuningTarget) -> Solution | None:
        """Return the original of servers of a target; None if it is unknown."""
        return self._kernels.incumbent(kernel, target=target)

    def roofs(self, kernel: str, shapes: Sequence[Mapping[str, int]], arch: str) -> Roofs | None:
        """Return the hardware limits of some shapes; None if they are unknown."""
        return roofs_of(kernel, shapes, arch=arch)

    def drifts(self, *, before: str, limit: int) -> Sequence[DriftLine]:
        """Return drift reports of all targets, newest first; what cannot be read is left out."""
        page = self._store.page(DRIFT, phases=_PHASES, before=before, limit=limit)
        return tuple(_lines(page))

    def window(self, key: str) -> Window | None:
        """Return a drift report with its window of the same id, and the pod's window before."""
        stored = self._store.get(DRIFT, key)
        line = next(_lines((stored,) if stored is not None else ()), None)
        if line is None:
            return None
        kept = self._store.get(PROFILE, key)
        name = kept.body.get("before") if kept is not None else None
        earlier = self._store.get(PROFILE, name) if isinstance(name, str) and name else None
        return Window(
            line=line,
            profile=_profile(kept) if kept is not None else None,
            before=_profile(earlier) if earlier is not None else None,
        )

    def busy_ratio(self, target: str) -> float | None:
        """Return the share of time in which kernels ran; None without a profile."""
        found = []
        for stored in self._store.list(PROFILE, prefix=f"{target}/", limit=_LOOKED_AT):
            profile = _profile(stored)
            if profile is not None and profile.observed_ns > 0:
                busy = profile.gpu_time_ns / profile.observed_ns / _gpus_in(stored, profile)
                found.append(min(1.0, busy))
        return sum(found) / len(found) if found else None

    def accounts(self) -> Sequence[Account]:
        """Return what was spent and saved, newest month first."""
        return self._accounts()


def _lines(page: Sequence[Stored]) -> Iterator[DriftLine]:
    for stored in page:
        try:
            report = DriftReport.model_validate(stored.body.get("report"))
        except (ValidationError, UnreadableInput):
            continue
        at = datetime.fromtimestamp(report.window_start_ns / 1e9, UTC)
        target = stored.id.rpartition("/")[0]
        beside = beside_of(stored.body)
        yield DriftLine(key=stored.id, target=target, at=at, report=report, beside=beside)


def _gpus_in(stored: Stored, profile: WorkloadProfile) -> int:
    """Return the accelerators whose launches a window has; slots count those of all ranks."""
    name = "of_gpus" if profile.counted else "gpus_traced"
    return max(1, int(stored.body.get(name, 1)))


def _profile(stored: Stored) -> WorkloadProfile | None:
    try:
        return WorkloadProfile.model_validate(stored.body.get("profile"))
    except ValidationError:
        return None
