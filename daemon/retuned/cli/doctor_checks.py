"""The places that the settings name: are they there, can they be read, and what follows if not.

Questions to a machine and what its answers look like, for ``retuned doctor``.

Whether the package that searches with a language model is there, for ``retuned doctor``.
"""

from __future__ import annotations

import ctypes.util
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from pathlib import Path

from retuned.catalog.user import load_definitions
from retuned.errors import RetunedError
from retuned.lab.harness.isolation import Isolation, isolation
from retuned.lab.languages.gpu import Gpu, find_gpu
from retuned.settings import Settings
from retuned.stages.gate import EndToEndRule, cluster_only_fields, limits_of
from retuned.store.policy_files import load_policies

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


_REFUSED = "`retuned run` does not start with it; see `retuned policy check`"


def places(probe: Probe, settings: Settings) -> Iterator[Fact]:
    """Yield a fact for each watched folder, policy and the folder of the control sockets."""
    for folder in settings.watch_dirs:
        problem = folder_problem(folder, names=probe.names)
        advice = f"{problem}; no trace is read from it until that is put right"
        yield fact("watch-folder", not problem, str(folder), advice)
    if not settings.watch_dirs:
        yield fact(
            "watch-folder", False, "none set", "`retuned run` sees no traces; set watch_dirs"
        )
    yield from _policies(settings.policy_files)
    if not settings.policy_files:
        yield fact("policy", False, "none set", "nothing is ever swapped; set policy_files")
    for path in settings.definition_files:
        yield _definitions(path)
    yield _sockets(probe, settings)
    yield _kept(probe, settings)


def cautions(settings: Settings) -> Iterator[str]:
    """Yield what the daemon should say at its start: folders it cannot read, idle policy fields.

    Raises
    ------
    UnreadableInput
        If a policy cannot be read; the daemon does not start with one.
    """
    names = Probe().names
    for folder in settings.watch_dirs:
        problem = folder_problem(folder, names=names)
        if problem:
            yield f"watched folder {folder} {problem}; no trace is read from it until it can be"
    if not settings.watch_dirs:
        yield (
            "no folder is watched, so only tunables of attached servers are seen; set watch_dirs "
            "or give --watch"
        )
    for policy in load_policies(settings.policy_files):
        idle = ", ".join(field.path for field in cluster_only_fields(policy))
        if idle:
            yield (
                f"policy {policy.full_name}: acts in a cluster only: {idle}; "
                "`retuned policy check` says what holds instead"
            )
        limits = limits_of(policy)
        if limits.end_to_end is EndToEndRule.REQUIRED and not settings.end_to_end_url:
            yield (
                f"policy {policy.full_name} demands an end-to-end measurement and end_to_end_url "
                "is not set, so nothing it decides about is swapped"
            )
        if limits.live_proof.slo.asked and not settings.server_metrics_url:
            yield (
                f"policy {policy.full_name} bounds service levels and server_metrics_url is not "
                "set, so no swap that it decides about is proven on live traffic"
            )
        if limits.capture and settings.capture_inputs:
            yield f"policy {policy.full_name}: inputs of the server are captured for experiments"


def folder_problem(folder: Path, *, names: Callable[[Path], Sequence[str]]) -> str:
    """Return what is wrong with a folder that is to be read; nothing if it can be.

    Parameters
    ----------
    names
        Lists a folder, or raises `OSError`.
    """
    try:
        names(folder)
    except FileNotFoundError:
        return "does not exist"
    except NotADirectoryError:
        return "is not a folder"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return ""


def _definitions(path: Path) -> Fact:
    try:
        names = ", ".join(own.name for own in load_definitions([path]))
    except RetunedError as error:
        advice = f"{error}; `retuned run` does not start with it"
        return fact("definition", False, str(path), advice, lacking=Level.MISSING)
    return fact("definition", bool(names), f"{path}: {names}", "holds no definition")


def _policies(paths: Sequence[Path]) -> Iterator[Fact]:
    """Yield a fact for each, and one if they are good alone and cannot be used together."""
    found = [_policy(path) for path in paths]
    yield from found
    if any(each.level is Level.MISSING for each in found):
        return
    try:
        load_policies(paths)
    except RetunedError as error:
        yield fact("policy", False, str(error), _REFUSED, lacking=Level.MISSING)


def _policy(path: Path) -> Fact:
    try:
        policies = load_policies([path])
    except RetunedError as error:
        return fact("policy", False, str(error), _REFUSED, lacking=Level.MISSING)
    names = ", ".join(policy.full_name for policy in policies)
    return fact("policy", bool(policies), f"{path}: {names or 'no policy'}", "nothing is swapped")


def _kept(probe: Probe, settings: Settings) -> Fact:
    """Say how much of experiments lies here, and when the rest goes."""
    parts = []
    for what, folder in (("variants", "artifacts"), ("raw samples", "evidence")):
        try:
            count = len(probe.names(settings.state_dir / "lab" / folder))
        except OSError:
            count = 0
        parts.append(f"{count} {what}")
    value = (
        f"{', '.join(parts)}; what nothing needs goes after {settings.retention_days:g} days, "
        f"signed evidence after {settings.evidence_retention_days:g}"
    )
    return Fact(name="kept", level=Level.OK, value=value)


def _sockets(probe: Probe, settings: Settings) -> Fact:
    folder = settings.sockets
    problem = folder_problem(folder, names=probe.names)
    if problem == "does not exist":
        value = f"{folder}: not there yet; a server makes it when it attaches"
        return Fact(name="socket-folder", level=Level.OK, value=value)
    if problem:
        advice = f"{problem}; nothing can be swapped into servers behind it"
        return Fact(name="socket-folder", level=Level.LIMITED, value=str(folder), advice=advice)
    count = sum(name.endswith(".sock") for name in probe.names(folder))
    return Fact(name="socket-folder", level=Level.OK, value=f"{folder}: {count} sockets")
