"""Compiles a C++ candidate into one audited shared object, or refuses it with a reason.

Order: static contract on the text, contract again after macro expansion, compile, audit of the
binary. The source is untrusted, so every compiler run is a killable child with limits on time,
memory and file size, an empty environment and a private folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from retuned.contract import Digest, Environment, Language, Solution
from retuned.errors import CompileFailed, MissingDependency
from retuned.lab.languages.binary_audit import audit
from retuned.lab.languages.cpp_contract import ContractViolated, check_preprocessed, check_source
from retuned.lab.languages.limits import CompileLimits

__all__ = ["CompileLimits", "Compiled", "check_contract", "compile_solution", "cpu_environment"]

_COMPILER = "g++"
_NUMERICS = ("-O3", "-march=native", "-fno-math-errno", "-ffp-contract=fast")
_FLAGS = (
    *_NUMERICS,
    "-std=c++17",
    "-fPIC",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-semantic-interposition",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-fopenmp-simd",
    "-ftemplate-depth=128",
    "-fconstexpr-ops-limit=10000000",
    "-fmax-errors=3",
    "-w",
)
_LINK = (
    "-shared",
    "-nostartfiles",
    "-nodefaultlibs",
    "-Wl,--no-undefined,-z,relro,-z,now,-z,noexecstack",
)
_LIBRARIES = ("-lm", "-lc", "-lgcc", "-o", "kernel.so")
_LIMITED = """
ulimit -v "$1"; ulimit -t "$2"; ulimit -f "$3"; shift 3
exec 3<&0
"$@" 3<&- </dev/null & compiler=$!
(read -r _ <&3; kill -9 -$$) & guard=$!
wait $compiler; code=$?
kill -9 $guard
exit $code
"""
"""Shell script that sets limits and starts the compiler; all words are passed as arguments.

Its stdin is a pipe that closes when the parent dies, even by SIGKILL. Then the script kills the
whole group, because an orphan would hold a core that the next experiment measures on.
"""
_PARAM_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,31}")
_PARAM_VALUE = re.compile(r"-?[0-9]{1,9}|[a-zA-Z][a-zA-Z0-9_]{0,31}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A shared object that passed contract and audit."""

    path: Path
    """The file, named by its content key in the cache folder."""
    sha256: str
    cached: bool


@cache
def cpu_environment() -> Environment:
    """Describe this machine for evidence: processor, compiler and flags that affect rounding.

    Raises
    ------
    MissingDependency
        If a C++ compiler is not installed.
    """
    return Environment(
        arch=f"cpu:{_processor()}",
        compiler=f"g++ {_compiler_version()}",
        numerics={"CPU_CXX_FLAGS": " ".join(_NUMERICS)},
    )


def compile_solution(
    solution: Solution, *, cache_dir: Path, limits: CompileLimits | None = None
) -> Compiled:
    """Check, compile and audit one solution; the result is cached by content and compiler.

    Raises
    ------
    ContractViolated
        If the text is outside the contract.
    CompileFailed
        If the compiler refuses it, dies or exceeds its limits (reason ``compile-failed``).
    BinaryAuditFailed
        If the compiled object holds something that a kernel does not need.
    MissingDependency
        If a C++ compiler is not installed.
    """
    limits = limits or CompileLimits()
    check_contract(solution)
    key = _cache_key(solution)
    target = cache_dir / f"{key}.so"
    if not target.exists():
        cache_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="compile-", dir=cache_dir) as folder:
            built = _compile(solution, Path(folder), limits)
            audit(built, entry=solution.entry)
            os.replace(built, target)
        return Compiled(path=target, sha256=_sha256(target), cached=False)
    audit(target, entry=solution.entry)
    return Compiled(path=target, sha256=_sha256(target), cached=True)


def check_contract(solution: Solution) -> None:
    if solution.language is not Language.CPU_CPP:
        raise ContractViolated(f"language {solution.language} is not {Language.CPU_CPP}")
    for name, value in solution.params.items():
        if not _PARAM_NAME.fullmatch(name) or not _PARAM_VALUE.fullmatch(str(value)):
            raise ContractViolated(f"parameter {name[:40]}={str(value)[:40]!r} is not plain")
    names = [source.path for source in solution.sources]
    if len(set(names)) != len(names) or not names[0].endswith(".cpp"):
        raise ContractViolated("the first source must be a .cpp file and names must differ")
    for source in solution.sources:
        own = frozenset(names) - {names[0], source.path}
        check_source(source.content, where=source.path, own_headers=own)


def _compile(solution: Solution, folder: Path, limits: CompileLimits) -> Path:
    for source in solution.sources:
        (folder / source.path).write_text(source.content, encoding="utf-8")
    main = solution.sources[0].path
    defines = [f"-D{name}={value}" for name, value in sorted(solution.params.items())]
    # The checked text is the compiled text: macros are expanded once.
    _run([*_FLAGS, *defines, "-E", "-o", "expanded.ii", main], folder, limits)
    own = frozenset(source.path for source in solution.sources)
    own |= {f"./{name}" for name in own}
    text = (folder / "expanded.ii").read_text(encoding="utf-8", errors="replace")
    check_preprocessed(text, own_files=own, entry=solution.entry)
    (folder / "exports.map").write_text(f"{{ global: {solution.entry}; local: *; }};\n")
    _run(
        [*_FLAGS, *_LINK, "-Wl,--version-script=exports.map", "expanded.ii", *_LIBRARIES],
        folder,
        limits,
    )
    return folder / "kernel.so"


def _run(arguments: list[str], folder: Path, limits: CompileLimits) -> str:
    compiler = _compiler()
    words = [str(limits.memory_bytes // 1024), str(limits.cpu_s), str(limits.file_bytes // 512)]
    with (folder / "errors.txt").open("wb") as errors:
        process = subprocess.Popen(
            ["/bin/sh", "-c", _LIMITED, "sh", *words, compiler, *arguments],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", "TMPDIR": str(folder)},
            start_new_session=True,
        )
    try:
        code = process.wait(timeout=limits.wall_s)
    except subprocess.TimeoutExpired:
        _kill_group(process)
        raise CompileFailed(
            "compile-failed", detail=f"took more than {limits.wall_s:g} s"
        ) from None
    finally:
        if process.poll() is None:
            _kill_group(process)
        if process.stdin is not None:
            process.stdin.close()
    text = _sanitised(folder / "errors.txt", folder)
    if code != 0:
        raise CompileFailed("compile-failed", detail=text or f"compiler ended with status {code}")
    return text


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _sanitised(path: Path, folder: Path) -> str:
    """First lines of the compiler's errors: no paths of this machine, no control characters."""
    with path.open("rb") as stream:
        text = stream.read(8192).decode("utf-8", "replace").replace(str(folder) + "/", "")
    lines = [line for line in text.splitlines() if "error" in line or "Killed" in line]
    short = " | ".join((lines or text.splitlines())[:3])
    short = re.sub(r"/[\w./+-]*/", "", short)
    return re.sub(r"[^\x20-\x7e]", "?", short)[:400]


def _cache_key(solution: Solution) -> str:
    body = f"{solution.digest}\n{cpu_environment().digest}\n{' '.join((*_FLAGS, *_LINK))}"
    return hashlib.sha256(body.encode()).hexdigest()


def _sha256(path: Path) -> Digest:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _compiler() -> str:
    found = shutil.which(_COMPILER)
    if found is None:
        raise MissingDependency(
            f"no C++ compiler: '{_COMPILER}' is not on the PATH; Debian has it in package g++"
        )
    return found


def _compiler_version() -> str:
    done = subprocess.run(
        [_compiler(), "-dumpfullversion"], capture_output=True, text=True, timeout=20, check=False
    )
    return done.stdout.strip() or "unknown"


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return "unknown"
    models = re.findall(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.findall(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    # -march=native follows the flags, and virtual machines share a model name with different flags.
    stamp = hashlib.sha256((flags[0] if flags else "").encode()).hexdigest()[:8]
    return f"{models[0].strip() if models else 'unknown'} ({stamp})"
