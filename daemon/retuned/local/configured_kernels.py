"""Steps of a server's files as kernels of the catalog, and what is decided of them, as stored."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from pydantic import ValidationError

from retuned.configured.choosing import inside
from retuned.configured.launches import read_launch
from retuned.configured.records import FileChange, Format, TunedFileStep
from retuned.configured.variants import incumbent_of, structure_of
from retuned.contract import Digest, Solution
from retuned.errors import CandidateError, UsageError
from retuned.local.context import KernelCatalog, RecordKind
from retuned.ports import Store
from retuned.stages.profile import ProfileSettings, bucket_low

log = logging.getLogger(__name__)


class StoredChanges:
    """What is decided about files, read from the store; the `Changes` of a swapper."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def of(self, proposal: str) -> FileChange | None:
        """Return what a proposal writes; None where it swaps a kernel."""
        stored = self._store.get(RecordKind.FILE_CHANGE, proposal)
        return FileChange.model_validate(stored.body) if stored is not None else None

    def known(self) -> Mapping[str, Format]:
        """Return the kernels that files configure, with whose files they are."""
        return {subject.definition: subject.format for subject in subjects(self._store)}


class ConfiguredKernels:
    """A catalog in which steps of a server's files are kernels, beside all others.

    Parameters
    ----------
    kernels
        All others.
    store
        Where the steps are kept.
    buckets
        How traces round lengths up.
    """

    def __init__(self, kernels: KernelCatalog, store: Store, *, buckets: ProfileSettings) -> None:
        self._kernels = kernels
        self._store = store
        self._buckets = buckets

    def recognise(
        self, kernel: str, dims: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]
    ) -> tuple[str, Mapping[str, int]] | None:
        """Return definition and axes of a launch; of a file's kernel, where its step is tuned."""
        named = self._kernels.recognise(kernel, dims, dtypes)
        launch = read_launch(kernel, dims, dtypes) if named is None else None
        subject = subject_of(self._store, launch.definition) if launch is not None else None
        if launch is None or subject is None:
            return named
        low = bucket_low(launch.tokens, self._buckets)
        if not inside(subject.run, low=low, high=launch.tokens):
            return None
        return launch.definition, {"M": launch.tokens}

    def incumbent(self, definition: str) -> Solution:
        """Return the variant that the server comes with: of a file's kernel, its row."""
        subject = subject_of(self._store, definition)
        if subject is None:
            return self._kernels.incumbent(definition)
        return incumbent_of(definition, subject.run.row, format=subject.format)

    def family(self, definition: str) -> str:
        """Return the operator type."""
        return self._kernels.family(definition)

    def audited(self, definition: str) -> tuple[str, ...]:
        """Return the structure that runs in production."""
        subject = subject_of(self._store, definition)
        if subject is not None:
            return (structure_of(subject.format),)
        return self._kernels.audited(definition)

    def structures(self, definition: str) -> tuple[str, ...]:
        """Return all structures: a row can say no other than the one that runs."""
        subject = subject_of(self._store, definition)
        if subject is not None:
            return (structure_of(subject.format),)
        return self._kernels.structures(definition)

    def floor_ns(self, definition: str, axes: Mapping[str, int]) -> int:
        """Return the roofline time; 0 where unknown."""
        return self._kernels.floor_ns(definition, axes)


def subjects(store: Store) -> Iterator[TunedFileStep]:
    """Yield the steps that are tuned, oldest first."""
    for stored in store.list(RecordKind.FILE, phase="tuned"):
        try:
            yield TunedFileStep.model_validate(stored.body)
        except ValidationError as error:
            log.warning("%s is left out: %d fields are wrong", stored.id, error.error_count())


def subject_of(store: Store, definition: str) -> TunedFileStep | None:
    """Return the step that is tuned as a definition; None where no file configures it."""
    stored = store.get(RecordKind.FILE, definition)
    if stored is None or stored.phase != "tuned":
        return None
    try:
        return TunedFileStep.model_validate(stored.body)
    except ValidationError:
        return None


def incumbent_named(store: Store, digest: Digest) -> Solution | None:
    """Return a server's row as a variant, by its digest; None where it is nobody's."""
    for subject in subjects(store):
        try:
            row, kind = subject.run.row, subject.format
            found = incumbent_of(subject.definition, row, format=kind)
        except (CandidateError, UsageError) as error:
            log.warning("%s is left out: %s", subject.definition, error)
            continue
        if found.digest == digest:
            return found
    return None
