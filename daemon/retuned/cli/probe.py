"""Questions to a machine and what its answers look like, for ``retuned doctor``."""

from __future__ import annotations

import ctypes.util
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from pathlib import Path

from retuned.lab.harness.isolation import Isolation, isolation
from retuned.lab.languages.gpu import Gpu, find_gpu

_MOST_NAMES = 10_000


class Level(StrEnum):
    """How a fact is to be read."""

    OK = "ok"
    LIMITED = "limited"
    """Something works less well, or not here."""
    MISSING = "missing"
    """The loop cannot run here, or `retuned run` would refuse to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One thing about the machine."""

    name: str
    """Stable name."""
    level: Level
    """How to read it."""
    value: str
    """What was found."""
    advice: str = ""
    """What to do; empty where all is well."""


def fact(name: str, well: bool, value: str, advice: str, *, lacking: Level = Level.LIMITED) -> Fact:
    """Return a fact, with its advice only where something is lacking."""
    return Fact(
        name=name, level=Level.OK if well else lacking, value=value, advice="" if well else advice
    )


def _run(command: Sequence[str]) -> str | None:
    """Return what a command prints, or None if it is absent, fails or hangs."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _writable(folder: Path) -> bool:
    """Whether the folder, or the nearest one above it that exists, can be written."""
    there = next((p for p in (folder, *folder.absolute().parents) if p.exists()), folder)
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def _library(name: str) -> str | None:
    """Return a shared library: the system's, or one that a Python package brought."""
    found = ctypes.util.find_library(name)
    if found is not None:
        return found
    folders = (Path(each) for each in sys.path if each)
    brought = (path for folder in folders for path in folder.glob(f"nvidia/*/lib/lib{name}.so*"))
    return next((path.name for path in brought), None)


def _names(folder: Path) -> Sequence[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in islice(entries, _MOST_NAMES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Every question that is put to the machine; tests answer them."""

    python: tuple[int, int, int] = field(default_factory=lambda: sys.version_info[:3])
    """Version of this interpreter."""
    system: str = field(default_factory=platform.system)
    """Name of the operating system."""
    arch: str = field(default_factory=platform.machine)
    """Architecture of the processor."""
    cores: Callable[[], int] = field(default=lambda: len(os.sched_getaffinity(0)))
    """Cores that this process may use."""
    run: Callable[[Sequence[str]], str | None] = _run
    """Output of a command."""
    which: Callable[[str], str | None] = shutil.which
    """Path of a program."""
    read: Callable[[str], str | None] = _read
    """Content of a small file."""
    version: Callable[[str], str | None] = _version
    """Version of an installed Python package."""
    writable: Callable[[Path], bool] = _writable
    """Whether a folder can be written."""
    names: Callable[[Path], Sequence[str]] = _names
    """What lies in a folder, unless it is a lot; raises `OSError`."""
    gpu: Callable[[], Gpu | None] = find_gpu
    """The GPU as PyTorch sees it; raises `MissingDependency`."""
    library: Callable[[str], str | None] = _library
    """File of a shared library, by its name without ``lib``."""
    isolation: Callable[[], Isolation] = isolation
    """What keeps candidates in."""
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    """Environment variables."""
