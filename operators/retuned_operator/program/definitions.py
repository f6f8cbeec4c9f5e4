"""Users' own kernels in a cluster: a folder of files, each believed or refused for itself.

They are an administrator's, as policies are, and are known to every target; what a pod tells of its
server's kernels is kept apart, by target. A file that cannot be used is left out and said, with
what is wrong and where, and takes nothing else with it: an operator that ended over one file would
also no longer send back what does harm.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from retuned import catalog
from retuned.catalog.own import OwnDefinition, definition_files, load_definition
from retuned.errors import Refused, RetunedError
from retuned_operator.program.live_kernels import PREFIX

log = logging.getLogger(__name__)

MAX_CHARS = 160 << 10
"""Longest definition with its sources, as JSON: a task, which is an object of at most 1 MiB, has it
beside the incumbent and three finalists, and each of these may be most of it again."""
MAX_FILES = 256
"""Most definition files that are read: a launch is held against every definition."""
_MAX_SAID = 1_000
_HINT = "`retuned kernels show FILE` checks a file; the operator reads them when it starts"


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedFile:
    """A file that is not used."""

    path: Path
    """The file, or the folder if that cannot be read."""
    code: str
    """Stable reason, kebab-case."""
    where: str
    """Its path, with the line where that is known."""
    message: str
    """What is wrong, and what to do; in one line, as `where` is, without control characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionLoad:
    """What came of a folder."""

    names: tuple[str, ...] = ()
    """Definitions that the catalog knows now, in the order of their files."""
    left_out: tuple[SkippedFile, ...] = ()
    """What it does not."""


def learn(folder: Path | None) -> DefinitionLoad:
    """Make the definitions of a folder known to this process, one file after the other by name.

    Parameters
    ----------
    folder
        Definition files and the sources beside them; None is nothing at all.
    """
    if folder is None:
        return DefinitionLoad()
    names: list[str] = []
    left_out: list[SkippedFile] = []
    for path in _files(folder, left_out):
        try:
            names.append(_learn_one(path))
        except RetunedError as error:
            left_out.append(_left(path, error))
    for each in left_out:
        log.warning("%s is left out [%s]: %s; %s", each.where, each.code, each.message, _HINT)
    if names:
        log.info("%d definitions of %s are known: %s", len(names), folder, ", ".join(names))
    return DefinitionLoad(names=tuple(names), left_out=tuple(left_out))


def _files(folder: Path, left_out: list[SkippedFile]) -> Iterator[Path]:
    """Yield the files; that there are too many, or none can be listed, is left out as one thing."""
    try:
        if not folder.is_dir():
            raise _refused_file("cannot-open", "is no folder; mount the definitions there")
        found = definition_files([folder])
        yield from islice(found, MAX_FILES)
        if next(found, None) is not None:
            raise _refused_file(
                "too-many-definitions", f"has over {MAX_FILES}; the rest is not read"
            )
    except RetunedError as error:
        left_out.append(_left(folder, error))
    except OSError as error:
        reason = _refused_file("cannot-open", f"cannot be read ({error.strerror})")
        left_out.append(_left(folder, reason))


def _learn_one(path: Path) -> str:
    """Read a file and make what it defines known; return the name.

    Raises
    ------
    RetunedError
        If it cannot be used.
    """
    own = load_definition(path)
    if own.name.startswith(PREFIX):
        raise _refused_file("name-reserved", f"names from '{PREFIX}' on are those of live kernels")
    if _length(own) > MAX_CHARS:
        raise _refused_file(
            "definition-too-large",
            f"is longer than {MAX_CHARS >> 10} KiB with its sources, and a task "
            "of an experiment has to hold it; give it fewer variants",
        )
    catalog.learn([own])
    return own.name


def _length(own: OwnDefinition) -> int:
    return len(json.dumps(own.model_dump(mode="json")))


def _left(path: Path, error: RetunedError) -> SkippedFile:
    where, message = _plain(error.where or str(path)), _plain(error.message)
    return SkippedFile(path=path, code=error.code, where=where, message=message)


def _plain(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text)[:_MAX_SAID]


def _refused_file(code: str, message: str) -> Refused:
    error = Refused(message)
    error.code = code
    return error
