"""``retuned doctor``: what this machine has and lacks, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import typer

from retuned.cli.doctor_checks import Fact, Level, Probe, fact, places
from retuned.cli.output import JsonFlag, cell, emit_json, stdout
from retuned.cli.session import ConfigOption, StateOption
from retuned.errors import MissingDependency
from retuned.lab.harness.syscalls import ARCHITECTURES
from retuned.lab.languages.triton import FALLBACK_ARCH
from retuned.lab.physics import GPU_PEAKS
from retuned.settings import Settings, load_settings

_NEEDED_MEMORY_BYTES = 2 * 2**30
_NO_GPU = f"no GPU: Triton is interpreted and compiled for {FALLBACK_ARCH}, never timed"
_HOW_TO_COMPILE = {
    "nvrtc": "NVIDIA's libnvrtc comes with PyTorch for CUDA, or with the CUDA toolkit",
    "hiprtc": "ROCm brings libhiprtc (ROCM_PATH names it); or install clang-19 and lld-19",
}


def doctor(
    config: ConfigOption = None, state_dir: StateOption = None, json: JsonFlag = False
) -> None:
    """Report what this machine has and lacks; exit 4 if the loop cannot run on it."""
    settings = load_settings(config, {"state_dir": state_dir})
    facts = examine(Probe(), settings)
    usable = all(each.level is not Level.MISSING for each in facts)
    if json:
        emit_json(
            {
                "usable": usable,
                "facts": [
                    {
                        "name": each.name,
                        "level": each.level.value,
                        "value": each.value,
                        "advice": each.advice,
                    }
                    for each in facts
                ],
            }
        )
    else:
        _print(facts, usable=usable)
    raise typer.Exit(0 if usable else 4)


def examine(probe: Probe, settings: Settings) -> tuple[Fact, ...]:
    """Put every question and return the facts, the needed ones first."""
    return (
        *_needed(probe, state_dir=settings.state_dir),
        *places(probe, settings),
        *_frameworks(probe),
        *_devices(probe),
        *_gpu_lab(probe, language=settings.lab_language),
        *_compilers(probe),
        *_sandbox(probe),
        _switch(probe),
    )


def _needed(probe: Probe, *, state_dir: Path) -> Iterator[Fact]:
    version = ".".join(map(str, probe.python))
    right = probe.python >= (3, 11)
    yield fact("python", right, version, "install Python 3.11 or newer", lacking=Level.MISSING)
    linux = probe.system == "Linux"
    yield fact("system", linux, probe.system, "run on Linux", lacking=Level.MISSING)
    yield _compiler(probe)
    yield fact(
        "cores",
        probe.cores() >= 2,
        str(probe.cores()),
        "with one core the server and experiments disturb each other; timings need more runs",
    )
    memory = re.search(r"MemAvailable:\s+([0-9]+) kB", probe.read("/proc/meminfo") or "")
    size = int(memory[1]) * 1024 if memory else 0
    value = f"{size / 2**30:.1f} GiB available" if memory else "unknown"
    yield fact("memory", size >= _NEEDED_MEMORY_BYTES, value, "the demo wants 2 GiB free")
    yield fact(
        "state-folder",
        probe.writable(state_dir),
        str(state_dir),
        "cannot be written; name another with --state-dir or RETUNED_STATE_DIR",
        lacking=Level.MISSING,
    )


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
        yield fact(package, found is not None, found or "not installed", what)


def _devices(probe: Probe) -> Iterator[Fact]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    nvidia = probe.run(query) if probe.which("nvidia-smi") else None
    names = "; ".join(line.strip() for line in (nvidia or "").splitlines() if line.strip())
    yield _device("gpu-nvidia", names)
    nodes = [
        line
        for n in range(64)
        if (text := probe.read(f"/sys/class/kfd/kfd/topology/nodes/{n}/properties")) is not None
        and (line := _gfx(text))
    ]
    yield _device("gpu-amd", "; ".join(nodes))


def _gpu_lab(probe: Probe, *, language: str) -> Iterator[Fact]:
    """Say whether Triton variants can be measured here, and what follows if not."""
    try:
        gpu = probe.gpu()
    except MissingDependency as error:
        yield fact("gpu-lab", False, "unusable", str(error))
        return
    if gpu is None:
        why = "Triton kernels are observed only: untimed variants prove nothing, so none is tried"
        if language == "triton":
            advice = f"lab_language is triton. {why}; `retuned run` begins no experiment here"
            yield fact("gpu-lab", False, _NO_GPU, advice)
        else:
            yield fact("gpu-lab", True, f"{_NO_GPU}. {why}", "")
        return
    advice = f"the peak rates of {gpu.arch} are unknown, so the possible gain is unknown too"
    value = f"{gpu.arch}, {gpu.name}, {gpu.runtime}, driver {gpu.driver}"
    yield fact("gpu-lab", gpu.arch in GPU_PEAKS, value, advice)
    compiler = next(filter(None, map(probe.which, ("cc", "gcc", "clang"))), None)
    advice = "Triton builds its launcher with a C compiler: install gcc"
    yield fact("gpu-launcher", compiler is not None, compiler or "no C compiler", advice)


def _compilers(probe: Probe) -> Iterator[Fact]:
    """Say which vendor's run-time compiler of GPU C++ is there."""
    for name, vendor in (("nvrtc", "NVIDIA"), ("hiprtc", "AMD")):
        found = probe.library(name)
        none = f"none; GPU C++ is not compiled for {vendor} here: {_HOW_TO_COMPILE[name]}"
        yield Fact(name=name, level=Level.OK, value=found or none)


def _gfx(properties: str) -> str:
    """Return the architecture of a KFD node, such as ``gfx942``; empty for a CPU."""
    found = re.search(r"^gfx_target_version ([0-9]+)$", properties, re.MULTILINE)
    number = int(found[1]) if found else 0
    if not number:
        return ""
    return f"gfx{number // 10_000}{number // 100 % 100:x}{number % 100:x}"


def _device(name: str, found: str) -> Fact:
    return Fact(name=name, level=Level.OK, value=found or "none; the loop runs on the CPU")


def _sandbox(probe: Probe) -> Iterator[Fact]:
    walls = probe.isolation()
    known = probe.arch in ARCHITECTURES
    value = "tried, and it holds" if walls.system_calls else "tried, and it does not hold"
    advice = (
        "system calls of variants are not filtered: that needs a kernel with seccomp, on "
        f"{' or '.join(ARCHITECTURES)}"
    )
    yield fact("seccomp", walls.system_calls, value if known else f"not for {probe.arch}", advice)
    spaces = probe.run(["unshare", "--user", "--map-root-user", "true"]) is not None
    advice = "seccomp alone keeps variants off the network; an administrator may open namespaces"
    yield fact("user-namespaces", spaces, "open" if spaces else "closed", advice)
    advice = "seccomp alone keeps variants from files; Linux 5.13 and newer have Landlock"
    value = f"version {walls.files}" if walls.files else "absent"
    yield fact("landlock", bool(walls.files), value, advice)
    if not walls.files and not walls.system_calls:
        advice = (
            "references of your own definitions are refused; allow_unconfined_references runs them"
        )
        yield fact("own-references", False, "nothing would confine them", advice)
    yield _debuggers(probe)
    value = "present" if walls.bubblewrap else "absent"
    told = f"{value}; not needed, variants' processes give up their rights themselves"
    yield Fact(name="bubblewrap", level=Level.OK, value=told)


def _debuggers(probe: Probe) -> Fact:
    """Say who may read other processes' memory: the daemon hides its own either way."""
    scope = (probe.read("/proc/sys/kernel/yama/ptrace_scope") or "").strip()
    meanings = {
        "0": "off: processes of one user read each other",
        "1": "only descendants are read",
        "2": "only by administrators",
        "3": "not allowed to any process",
    }
    advice = (
        "servers that run variants as your user can be read by your other processes; an "
        "administrator may set kernel.yama.ptrace_scope to 1"
    )
    value = meanings.get(scope, "not in this kernel")
    return fact("debuggers", scope in ("1", "2", "3"), value, advice)


def _switch(probe: Probe) -> Fact:
    value = probe.environment.get("RETUNED_RUNTIME", "")
    off = value.lower() == "off"
    advice = "servers started from here keep their own kernels; unset RETUNED_RUNTIME to tune them"
    return fact("runtime-switch", not off, value or "not set", advice)


def _print(facts: Sequence[Fact], *, usable: bool) -> None:
    out = stdout()
    for each in facts:
        out.print(cell(f"{each.level.value:8} {each.name:16} {each.value}"), soft_wrap=True)
        if each.advice:
            out.print(cell(f"{'':25} {each.advice}"), soft_wrap=True)
    if any(each.value == _NO_GPU for each in facts) and usable:
        out.print("\nThe loop observes only on this machine, as it is set.")
        return
    if usable:
        out.print("\nThe loop can run on this machine's CPU.")
        return
    names = ", ".join(dict.fromkeys(each.name for each in facts if each.level is Level.MISSING))
    out.print(f"\nThe loop cannot run on this machine's CPU before this is put right: {names}.")
