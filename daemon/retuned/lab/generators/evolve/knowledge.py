"""Short notes of our own on what makes kernels fast, and people's hints for one kernel.

A note begins with the line ``<!-- languages: cpu_cpp triton; families: linear softmax -->``; a star
stands for all. The user who runs Retuned writes hints in a separate folder, in files named after
the definition or its family. They reach the model as data, like everything that is not ours.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from retuned.contract import Language

log = logging.getLogger(__name__)

MAX_HINT_BYTES = 16_384
"""Longest hint file."""
_HEAD = re.compile(r"<!-- languages: ([\w* ]+); families: ([\w* ]+) -->\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """One note of the knowledge folder."""

    name: str
    """File name without its ending."""
    languages: frozenset[str]
    """Languages it is about; a star for all."""
    families: frozenset[str]
    """Starts of op types it is about; a star for all."""
    text: str
    """The note."""

    def suits(self, language: Language, op_type: str) -> int:
        """Return 0 where it does not, 1 where it may, 2 where it names the family."""
        if not self.languages & {"*", str(language)}:
            return 0
        if any(family != "*" and family in op_type for family in self.families):
            return 2
        return int("*" in self.families)


def parse_pattern(name: str, text: str) -> Pattern:
    """Read a note.

    Raises
    ------
    ValueError
        If its first line is not as above.
    """
    head = _HEAD.match(text)
    if head is None:
        raise ValueError(f"the note '{name}' does not begin with its languages and families")
    return Pattern(
        name=name,
        languages=frozenset(head[1].split()),
        families=frozenset(head[2].split()),
        text=text[head.end() :].strip(),
    )


@cache
def patterns() -> tuple[Pattern, ...]:
    """Return the notes that ship with Retuned, by name."""
    folder = resources.files("retuned.lab.generators.evolve").joinpath("knowledge")
    files = [file for file in folder.iterdir() if file.name.endswith(".md")]
    files.sort(key=lambda file: file.name)
    return tuple(parse_pattern(f.name.removesuffix(".md"), f.read_text("utf-8")) for f in files)


def choose(
    language: Language, op_type: str, *, limit: int, notes: Sequence[Pattern] | None = None
) -> str:
    """Return the notes that suit, those on the family first, as many as fit `limit` characters."""
    ranked = sorted(
        (
            note
            for note in (patterns() if notes is None else notes)
            if note.suits(language, op_type)
        ),
        key=lambda note: (-note.suits(language, op_type), note.name),
    )
    text = ""
    for note in ranked:
        if len(text) + len(note.text) + 2 <= limit:
            text += ("\n\n" if text else "") + note.text
    return text


def read_hint(folder: str, definition: str, op_type: str) -> str:
    """Return a person's hint on a kernel, or else on its family; empty where neither exists.

    A file that is too long, not text, or not an ordinary file is left out, with a warning: a hint
    is never a reason to end an experiment.
    """
    if not folder:
        return ""
    for name in (definition, op_type):
        path = Path(folder) / f"{name}.md"
        try:
            return _read(path)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            log.warning("hint %s is left aside: %s", path.name, error)
    return ""


def _read(path: Path) -> str:
    """Read a small text file, following no link and waiting for no pipe."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(number, "rb") as stream:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise ValueError("no ordinary file")
        data = stream.read(MAX_HINT_BYTES + 1)
    if len(data) > MAX_HINT_BYTES:
        raise ValueError(f"longer than {MAX_HINT_BYTES} bytes")
    return data.decode("utf-8")
