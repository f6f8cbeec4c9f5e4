"""A folder of problems: which there are, in which order, and their texts; nothing is executed."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from retuned.contract import Digest
from retuned.errors import UnreadableInput, UsageError

_MOST_PROBLEMS = 10_000

_MOST_BYTES = 1_000_000

_NO_FOLDER = (
    "the folder does not exist; --problems names one with files such as level1/19_ReLU.py, for "
    "example the folder KernelBench of a checkout of KernelBench"
)

_DIGITS = re.compile(r"([0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemFile:
    """One problem on disk; its text was read once, and nothing of it was executed."""

    id: str
    """Path below the folder, without its ending: ``level1/19_ReLU``."""
    text: str
    """Its source."""

    @property
    def digest(self) -> Digest:
        """Digest of the source."""
        return "sha256:" + hashlib.sha256(self.text.encode()).hexdigest()


def discover(folder: Path) -> list[ProblemFile]:
    """Read all problems below a folder, in the order in which people count.

    Raises
    ------
    UsageError
        If there is none, or there are too many.
    UnreadableInput
        If one cannot be read.
    """
    if not folder.is_dir():
        raise UnreadableInput("folder-missing", where=str(folder), message=_NO_FOLDER)
    found = sorted(
        (path for path in _python_files(folder)),
        key=lambda path: _counted(path.relative_to(folder).as_posix()),
    )
    if not found:
        raise UsageError(f"{folder}: no .py files; problems are files such as level1/19_ReLU.py")
    if len(found) > _MOST_PROBLEMS:
        raise UsageError(f"{folder}: {len(found)} problems are more than {_MOST_PROBLEMS}")
    return [
        ProblemFile(id=path.relative_to(folder).with_suffix("").as_posix(), text=_text_of(path))
        for path in found
    ]


def _python_files(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):  # follows no links
        folders[:] = [name for name in folders if not name.startswith((".", "__"))]
        for name in names:
            path = Path(root, name)
            hidden = name.startswith((".", "__"))
            if name.endswith(".py") and not hidden and path.is_file() and not path.is_symlink():
                yield path


def _counted(text: str) -> list[tuple[int, int, str]]:
    return [(0, int(p[:18]), "") if p.isdigit() else (1, 0, p) for p in _DIGITS.split(text) if p]


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            data = stream.read(_MOST_BYTES + 1)
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableInput("unreadable", where=str(path), message=str(error)) from None
    if len(data) > _MOST_BYTES:
        message = f"has more than {_MOST_BYTES} bytes"
        raise UnreadableInput("too-large", where=str(path), message=message)
    return text
