"""Artifacts that servers may load: a folder each, signed for their target."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retuned.contract import Digest
from retuned.errors import TemporaryError
from retuned.store.artifact_folder import MANIFEST, bundle_of, sign_artifact
from retuned.store.keys import Ed25519Notary

_RETRY_S = 15.0


class ArtifactFolders:
    """The operator's artifacts.

    Parameters
    ----------
    root
        Made on first use.
    notary
        Signs them.
    """

    def __init__(self, root: Path, notary: Ed25519Notary) -> None:
        self._root = root
        self._notary = notary

    def files(self, digest: Digest) -> Mapping[str, bytes] | None:
        """Return the files of an artifact; None if it is not stored.

        Raises
        ------
        TemporaryError
            If it cannot be read now.
        """
        try:
            return bundle_of(self._folder(digest))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise TemporaryError(f"artifact {digest}: {error}", delay_s=_RETRY_S) from error

    def keep(
        self, digest: Digest, files: Mapping[str, bytes], *, definition: str, target: str
    ) -> None:
        """Keep files and sign them for a slot of a target; the first of several wins.

        Raises
        ------
        TemporaryError
            If they cannot be written now.
        """
        folder = self._folder(digest)
        try:
            _put_folder(folder, files)
            sign_artifact(
                folder,
                notary=self._notary,
                artifact=digest,
                definition=definition,
                target=target,
            )
        except OSError as error:
            raise TemporaryError(f"{folder}: {error.strerror}", delay_s=_RETRY_S) from error

    def _folder(self, digest: Digest) -> Path:
        return self._root / digest.removeprefix("sha256:")


def is_bound(files: Mapping[str, bytes], expected: Mapping[str, Any]) -> bool:
    """Whether the manifest of an artifact agrees with the definition of a live kernel.

    The process that runs candidates writes the manifest, so it is untrusted. It must not change
    which code of a server is intercepted, how a launch is read, or whether the server's own source
    runs.

    Parameters
    ----------
    expected
        What the definition gives for this variant.
    """
    try:
        body = json.loads(files.get(MANIFEST, b""))
    except (ValueError, RecursionError):
        return False
    return isinstance(body, dict) and all(
        body.get(name) == _plain(expected.get(name)) for name in ("intercept", *expected)
    )


def _plain(value: object) -> object:
    """Return a value as a manifest has it: tuples are lists there."""
    return json.loads(json.dumps(value))


def _put_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder whole or not at all; the first of several wins."""
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=folder.parent))
    try:
        for name, data in files.items():
            with (partial / name).open("xb") as file:
                file.write(data)
                os.fsync(file.fileno())
        os.replace(partial, folder)
    except OSError:
        if not folder.is_dir():  # unless another process wrote it first
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
