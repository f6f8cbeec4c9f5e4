"""Artifacts on the pod's disk: fetched by digest, verified by signature, removed when unused."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path

from retuned.contract import Digest
from retuned.errors import CandidateError, RetunedError, TemporaryError
from retuned.files import make_private
from retuned.ports import Operator
from retuned.runtime.artifacts.artifact import Artifact, read_artifact, read_signed
from retuned.runtime.artifacts.trust import SIGNATURE_FILE
from retuned.runtime.schema import Refused as RuntimeRefused
from retuned.runtime.tunables.records import digest_of_text
from retuned.sidecar.key_pinning import PinnedKeys
from retuned.stages.proposal import is_tunable, read_table
from retuned.stages.swap import SwapKind, SwapOrder
from retuned.store.artifact_folder import MANIFEST

log = logging.getLogger(__name__)

_RETRY_S = 10.0


class Artifacts:
    """A folder of artifacts, one folder each.

    Parameters
    ----------
    folder
        Made on first use.
    operator
        Where they come from.
    believed
        Whose signature they need.
    """

    def __init__(self, folder: Path, *, operator: Operator, believed: PinnedKeys) -> None:
        self._folder = folder
        self._operator = operator
        self._believed = believed

    def folder_of(self, order: SwapOrder) -> Path:
        """Return the folder of an order's artifact, verified now; it is fetched where it is absent.

        Raises
        ------
        CandidateError
            If it is not signed for this use, or has another digest; it is not kept.
        TemporaryError
            If it cannot be fetched, stored or checked now.
        Refused, UnreadableInput
            As `Operator.artifact`.
        """
        assert order.artifact is not None, "the original has no artifact"
        target = self._folder / order.artifact.removeprefix("sha256:")
        try:
            if not target.is_dir():
                self._fetch(order, target)
        except OSError as error:
            text = f"{self._folder}: {error.strerror}; an artifact cannot be kept"
            raise TemporaryError(text, delay_s=_RETRY_S) from error
        try:
            self._check(order, target)
        except CandidateError:
            shutil.rmtree(target, ignore_errors=True)
            raise
        return target

    def opens(self, order: SwapOrder) -> bool:
        """Whether preparing an order opens its slot, which a live kernel does not have before.

        True for an artifact that cannot be read: its delivery reports what is wrong. A table's slot
        appears with the first launch of its kernel; until then its order waits, and the sidecar
        reports the reason. A rollback does not wait.
        """
        if is_tunable(order.definition):
            return order.kind is SwapKind.SWAP
        try:
            return self._artifact(order, self.folder_of(order)).intercept is not None
        except (RetunedError, RuntimeRefused):
            return True

    def text(self, digest: Digest) -> str | None:
        """Return the text of a table that was fetched and verified; None where it is not here."""
        path = self._folder / digest.removeprefix("sha256:") / MANIFEST
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            return None
        return text if digest_of_text(text) == digest else None

    def keep_only(self, wanted: Collection[Digest]) -> None:
        """Remove artifacts that no order leads to any more, and what was left half fetched."""
        names = {digest.removeprefix("sha256:") for digest in wanted}
        try:
            found = list(self._folder.iterdir())
        except OSError:
            return  # nothing was fetched yet
        for path in found:
            if path.name not in names:
                shutil.rmtree(path, ignore_errors=True)

    def _fetch(self, order: SwapOrder, target: Path) -> None:
        assert order.artifact is not None, "see folder_of"
        make_private(self._folder)
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=self._folder))
        try:
            self._operator.artifact(order.artifact, folder=partial)
            self._check(order, partial)  # before it has a name under which it might be used
            os.rename(partial, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        log.info("fetched %s for %s", order.artifact, order.definition)

    def _check(self, order: SwapOrder, folder: Path) -> None:
        try:
            if is_tunable(order.definition):
                self._check_table(order, folder)
            else:
                self._artifact(order, folder)
        except RuntimeRefused as error:
            raise CandidateError(error.reason, detail=error.detail) from error

    def _check_table(self, order: SwapOrder, folder: Path) -> None:
        """Verify a table: its signature for this use first, then its digest and its tunable.

        Raises
        ------
        CandidateError
            ``digest-mismatch``, ``table-invalid``, ``order-invalid`` or ``artifact-invalid``.
        RuntimeRefused
            As `read_signed`.
        """
        assert order.artifact is not None, "see folder_of"
        manifest, resolved = read_signed(
            folder,
            digest=order.artifact,
            within=self._folder,
            trust=self._believed.trust(),
            definition=order.definition,
            target=order.target,
        )
        text = manifest.decode("utf-8", "replace")
        if digest_of_text(text) != order.artifact:
            raise CandidateError("digest-mismatch", detail=f"{folder} is not {order.artifact}")
        table = read_table(text)
        if table.tunable != order.definition:
            detail = f"the table is of {table.tunable}, the order of {order.definition}"
            raise CandidateError("order-invalid", detail=detail)
        if {each.name for each in resolved.iterdir()} - {MANIFEST, SIGNATURE_FILE}:
            raise CandidateError("artifact-invalid", detail=f"{folder} has more than a table")

    def _artifact(self, order: SwapOrder, folder: Path) -> Artifact:
        assert order.artifact is not None, "see folder_of"
        return read_artifact(
            folder,
            digest=order.artifact,
            within=self._folder,
            trust=self._believed.trust(),
            definition=order.definition,
            target=order.target,
        )
