"""``retuned doctor``: what this machine has and lacks, and what to do about it."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import typer

from retuned.cli.output import JsonFlag, cell, emit_json, stdout
from retuned.cli.state import ConfigOption, StateOption
from retuned.errors import MissingDependency
from retuned.lab.languages.gpu import Gpu, find_gpu
from retuned.lab.languages.triton import FALLBACK_ARCH
from retuned.lab.physics import GPU_PEAKS
from retuned.settings import load_settings

_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_VERSION = 1
_NEEDED_MEMORY_BYTES = 2 * 2**30


class Level(StrEnum):
    """How a fact is to be read."""

    OK = "ok"
    LIMITED = "limited"
    """Something works less well, or not here."""
    MISSING = "missing"
    """The loop on this machine's CPU cannot run."""


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


def _landlock() -> int:
    """Ask the kernel for its Landlock version; 0 where it has none."""
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, int(libc.syscall(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_VERSION)))


def _writable(folder: Path) -> bool:
    """Whether the folder, or the nearest one above it that exists, can be written."""
    there = next((p for p in (folder, *folder.absolute().parents) if p.exists()), folder)
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Every question that is put to the machine; tests answer them."""

    python: tuple[int, int, int] = field(default_factory=lambda: sys.version_info[:3])
    """Version of this interpreter."""
    system: str = field(default_factory=platform.system)
    """Name of the operating system."""
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
    landlock: Callable[[], int] = _landlock
    """Landlock version of the kernel."""
    writable: Callable[[Path], bool] = _writable
    """Whether a folder can be written."""
    gpu: Callable[[], Gpu | None] = find_gpu
    """The GPU as PyTorch sees it; raises `MissingDependency`."""
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    """Environment variables."""


def doctor(
    config: ConfigOption = None, state_dir: StateOption = None, json: JsonFlag = False
) -> None:
    """Say what this machine has and lacks; exit 4 if the loop cannot run on it."""
    settings = load_settings(config, {"state_dir": state_dir})
    facts = examine(Probe(), state_dir=settings.state_dir)
    usable = all(fact.level is not Level.MISSING for fact in facts)
    if json:
        emit_json(
            {
                "usable": usable,
                "facts": [
                    {
                        "name": fact.name,
                        "level": fact.level.value,
                        "value": fact.value,
                        "advice": fact.advice,
                    }
                    for fact in facts
                ],
            }
        )
    else:
        _print(facts, usable=usable)
    raise typer.Exit(0 if usable else 4)


def examine(probe: Probe, *, state_dir: Path) -> tuple[Fact, ...]:
    """Put every question and return the facts, the needed ones first."""
    return (
        *_needed(probe, state_dir=state_dir),
        *_frameworks(probe),
        *_devices(probe),
        *_gpu_lab(probe),
        *_sandbox(probe),
        _switch(probe),
    )


def _needed(probe: Probe, *, state_dir: Path) -> Iterator[Fact]:
    version = ".".join(map(str, probe.python))
    right = probe.python >= (3, 11)
    yield _fact("python", right, version, "install Python 3.11 or newer", lacking=Level.MISSING)
    linux = probe.system == "Linux"
    yield _fact("system", linux, probe.system, "run on Linux", lacking=Level.MISSING)
    yield _compiler(probe)
    yield _fact(
        "cores",
        probe.cores() >= 2,
        str(probe.cores()),
        "with one core the server and experiments disturb each other; timings need more runs",
    )
    memory = re.search(r"MemAvailable:\s+([0-9]+) kB", probe.read("/proc/meminfo") or "")
    size = int(memory[1]) * 1024 if memory else 0
    value = f"{size / 2**30:.1f} GiB available" if memory else "unknown"
    yield _fact("memory", size >= _NEEDED_MEMORY_BYTES, value, "the demo wants 2 GiB free")
    yield _fact(
        "state-folder",
        probe.writable(state_dir),
        str(state_dir),
        "cannot be written; name another with --state-dir or RETUNED_STATE_DIR",
        lacking=Level.MISSING,
    )
    objdump = probe.which("objdump")
    advice = "install binutils: without it the audit of compiled variants is coarser"
    yield _fact("binutils", objdump is not None, objdump or "no objdump", advice)


def _compiler(probe: Probe) -> Fact:
    path = probe.which("g++")
    output = probe.run([path, "--version"]) if path else None
    if path and output:
        return Fact(name="compiler", level=Level.OK, value=f"{path}: {output.splitlines()[0]}")
    return Fact(
        name="compiler",
        level=Level.MISSING,
        value="no g++",
        advice="install g++ (on Debian: apt-get install g++)",
    )


def _frameworks(probe: Probe) -> Iterator[Fact]:
    advice = {
        "torch": "needed for the demo's server: pip install 'retuned[experiment]'",
        "triton": "needed for GPU variants; it comes with torch on Linux",
    }
    for package, what in advice.items():
        found = probe.version(package)
        yield _fact(package, found is not None, found or "not installed", what)


def _devices(probe: Probe) -> Iterator[Fact]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    nvidia = probe.run(query) if probe.which("nvidia-smi") else None
    names = "; ".join(line.strip() for line in (nvidia or "").splitlines() if line.strip())
    yield _device("gpu-nvidia", names, probe.version("nvidia-ml-py"), extra="nvidia")
    nodes = [
        line
        for n in range(64)
        if (text := probe.read(f"/sys/class/kfd/kfd/topology/nodes/{n}/properties")) is not None
        and (line := _gfx(text))
    ]
    yield _device("gpu-amd", "; ".join(nodes), probe.version("pyrsmi"), extra="amd")


def _gpu_lab(probe: Probe) -> Iterator[Fact]:
    """Say whether Triton variants can be measured here."""
    try:
        gpu = probe.gpu()
    except MissingDependency as error:
        yield _fact("gpu-lab", False, "unusable", str(error))
        return
    if gpu is None:
        value = f"no GPU: Triton is interpreted and compiled for {FALLBACK_ARCH}, never timed"
        yield _fact("gpu-lab", True, value, "")
        return
    advice = f"peaks of {gpu.arch} are not known here, so nothing says what is left to gain"
    value = f"{gpu.arch}, {gpu.name}, {gpu.runtime}, driver {gpu.driver}"
    yield _fact("gpu-lab", gpu.arch in GPU_PEAKS, value, advice)
    compiler = next(filter(None, map(probe.which, ("cc", "gcc", "clang"))), None)
    advice = "Triton builds its launcher with a C compiler: install gcc"
    yield _fact("gpu-launcher", compiler is not None, compiler or "no C compiler", advice)


def _gfx(properties: str) -> str:
    """Return the architecture of a KFD node, such as ``gfx942``; empty for a CPU."""
    found = re.search(r"^gfx_target_version ([0-9]+)$", properties, re.MULTILINE)
    number = int(found[1]) if found else 0
    if not number:
        return ""
    return f"gfx{number // 10_000}{number // 100 % 100:x}{number % 100:x}"


def _device(name: str, found: str, counters: str | None, *, extra: str) -> Fact:
    if not found:
        return Fact(name=name, level=Level.OK, value="none; the loop runs on the CPU")
    advice = "" if counters else f"clocks and temperatures: pip install 'retuned[{extra}]'"
    return Fact(
        name=name, level=Level.OK if counters else Level.LIMITED, value=found, advice=advice
    )


def _sandbox(probe: Probe) -> Iterator[Fact]:
    bwrap = probe.which("bwrap")
    advice = "generated source runs without its own file system: install bubblewrap"
    yield _fact("bubblewrap", bwrap is not None, bwrap or "not installed", advice)
    version = probe.landlock()
    advice = "the kernel cannot confine files of one process: Linux 5.13 with landlock enabled"
    yield _fact("landlock", version > 0, f"version {version}" if version else "absent", advice)
    actions = probe.read("/proc/sys/kernel/seccomp/actions_avail")
    advice = "the kernel cannot confine system calls: one built with seccomp"
    yield _fact("seccomp", bool(actions), "present" if actions else "absent", advice)
    spaces = probe.run(["unshare", "--user", "--map-root-user", "true"]) is not None
    advice = "user namespaces are closed here; an administrator may open them, or use a container"
    yield _fact("user-namespaces", spaces, "open" if spaces else "closed", advice)


def _switch(probe: Probe) -> Fact:
    value = probe.environment.get("RETUNED_RUNTIME", "")
    off = value.lower() == "off"
    advice = "servers started from here keep their own kernels; unset RETUNED_RUNTIME to tune them"
    return _fact("runtime-switch", not off, value or "not set", advice)


def _fact(
    name: str, well: bool, value: str, advice: str, *, lacking: Level = Level.LIMITED
) -> Fact:
    return Fact(
        name=name, level=Level.OK if well else lacking, value=value, advice="" if well else advice
    )


def _print(facts: Sequence[Fact], *, usable: bool) -> None:
    out = stdout()
    for fact in facts:
        out.print(cell(f"{fact.level.value:8} {fact.name:16} {fact.value}"), soft_wrap=True)
        if fact.advice:
            out.print(cell(f"{'':25} {fact.advice}"), soft_wrap=True)
    verdict = "can" if usable else "cannot"
    out.print(f"\nThe loop {verdict} run on this machine's CPU.")
