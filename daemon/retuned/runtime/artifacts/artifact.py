"""Artifacts: a folder with ``artifact.json`` and its binaries, verified before anything is loaded.

The loaded bytes are the verified bytes: the binary is read once, hashed, and copied to an anonymous
file (or a private folder) that other users cannot change. Links, devices and names with folders in
them are refused, and sizes are bounded, because another process writes the folder.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retuned.runtime.artifacts.precompiled import (
    MAX_PRECOMPILED_BYTES,
    PRECOMPILED_FILE,
    PrecompiledEntry,
    parse_precompiled,
)
from retuned.runtime.artifacts.trust import MAX_SIGNATURE_BYTES, SIGNATURE_FILE, Trust
from retuned.runtime.schema import Refused, Spec, parse_spec

MANIFEST_FILE = "artifact.json"
"""Describes the binary in the same folder."""
MAX_MANIFEST_BYTES = 4 << 20
MAX_BINARY_BYTES = 64 << 20
MAX_SCRATCH_BYTES = 2**30
"""Largest workspace of one part."""
MAX_PARTS = 256
"""Maximum number of parts of a launch."""
MAX_PARAMS = 64
MAX_OBJECTS = 16
"""Maximum number of steps of a launch, and of pieces of scratch."""

_FILE = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,127}\Z")
_SYMBOL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,127}\Z")
_SHA256 = re.compile(r"(?:sha256:)?([0-9a-f]{64})\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    digest: str
    """Digest of the solution that it was compiled from."""
    spec: Spec
    language: str
    """Chooses the loader."""
    entry: str
    layouts: Mapping[str, str]
    """Layout of each constant input that is repacked."""
    scratch_bytes: int
    """Workspace per part."""
    parts: int
    """Parts that a launch is split into."""
    binary: bytes
    """The code, verified: a shared object, or the text of a Triton source."""
    params: Mapping[str, int | str] = field(default_factory=dict)
    """Compile-time parameters and launch options, if the loader compiles."""
    grid: tuple[str, ...] = ()
    steps: tuple[Mapping[str, Any], ...] = ()
    """Launches, if there are several; checked by the loader."""
    scratch: tuple[Mapping[str, Any], ...] = ()
    """Named scratch of the launches; checked by the loader."""
    intercept: Mapping[str, Any] | None = None
    """How it binds to launches of a kernel of the server; see `intercept.rules`."""
    precompiled: tuple[PrecompiledEntry, ...] = ()
    """Delivered compiled code; see `precompiled`."""


def read_artifact(
    folder: Path,
    *,
    digest: str,
    within: Path | None = None,
    trust: Trust | None = None,
    definition: str = "",
    target: str = "",
) -> Artifact:
    """Read and verify an artifact.

    Parameters
    ----------
    folder
        Folder delivered by the daemon.
    digest
        Digest in the order; the manifest must have the same.
    within
        Folder that must contain `folder`, links resolved; None allows any.
    trust
        Whose signature the manifest needs before it is parsed; None needs none.
    definition, target
        Slot and server that it must be signed for.

    Raises
    ------
    Refused
        ``artifact-missing``, ``artifact-outside``, ``artifact-invalid``, ``artifact-too-large``,
        ``artifact-tampered``, ``entry-digest-differs``, ``digest-mismatch``, or as `Trust.check`.
    """
    manifest, resolved = read_signed(
        folder, digest=digest, within=within, trust=trust, definition=definition, target=target
    )
    body = _manifest(manifest)
    if body.get("digest") != digest:
        raise Refused("digest-mismatch", detail=f"{folder} contains {body.get('digest')!r:.80}")
    name = body.get("binary")
    if not isinstance(name, str) or not _FILE.match(name):
        raise _invalid("binary", "is not a plain file name")
    binary = _read_file(resolved / name, limit=MAX_BINARY_BYTES)
    expected = _SHA256.match(str(body.get("binary_sha256")))
    if expected is None or hashlib.sha256(binary).hexdigest() != expected.group(1):
        raise Refused("artifact-tampered", detail=f"{name} does not match its sha256")
    spec = parse_spec(body.get("definition") or {})
    steps, scratch = _objects(body, "steps"), _objects(body, "scratch")
    if steps or scratch:
        check_solution_digest(body, binary, digest=digest)
    return Artifact(
        digest=digest,
        spec=spec,
        language=_matching(body, "language", _SYMBOL),
        entry=_matching(body, "entry", _SYMBOL),
        layouts=_layouts(body, spec),
        scratch_bytes=_bounded(body, "scratch_bytes", low=0, high=MAX_SCRATCH_BYTES),
        parts=_bounded(body, "parts", low=1, high=MAX_PARTS),
        binary=binary,
        params=_params(body),
        grid=_grid(body),
        steps=steps,
        scratch=scratch,
        intercept=body.get("intercept"),
        precompiled=_precompiled(body, resolved),
    )


def read_signed(
    folder: Path,
    *,
    digest: str,
    within: Path | None = None,
    trust: Trust | None = None,
    definition: str = "",
    target: str = "",
) -> tuple[bytes, Path]:
    """Return the bytes of a manifest whose signature was verified, and the resolved folder.

    The parameters are those of `read_artifact`.

    Raises
    ------
    Refused
        ``artifact-missing``, ``artifact-outside``, ``artifact-invalid``, ``artifact-too-large``, or
        as `Trust.check`.
    """
    try:
        resolved = folder.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise Refused("artifact-missing", detail=f"{folder}: {error}") from error
    if within is not None and not resolved.is_relative_to(within.resolve()):
        raise Refused("artifact-outside", detail=f"{folder} is not inside {within}")
    manifest = _read_file(resolved / MANIFEST_FILE, limit=MAX_MANIFEST_BYTES)
    if trust is not None:
        signature = _signature(resolved)
        trust.check(
            manifest, signature=signature, artifact=digest, definition=definition, target=target
        )
    return manifest, resolved


def check_solution_digest(body: Mapping[str, Any], binary: bytes, *, digest: str) -> None:
    """Compute the variant's digest from the manifest: the launched variant must be the judged one.

    Raises
    ------
    Refused
        ``artifact-invalid`` if something is missing, ``digest-mismatch`` if the digest differs.
    """
    path, definition = body.get("source_path"), body.get("definition")
    if not isinstance(path, str) or not _FILE.match(path) or not isinstance(definition, Mapping):
        raise _invalid("source_path", "is needed with steps or scratch")
    decides = {
        "definition": definition.get("name"),
        "language": body.get("language"),
        "entry": body.get("entry"),
        "sources": [{"path": path, "content": binary.decode("utf-8", "replace")}],
        "params": body.get("params", {}),
        "layouts": body.get("layouts", {}),
        "scratch_bytes": body.get("scratch_bytes", 0),
    }
    decides |= {name: body[name] for name in ("grid", "steps", "scratch") if body.get(name)}
    text = json.dumps(decides, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    found = "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    if found != digest:
        raise Refused("digest-mismatch", detail=f"the manifest describes {found}, not {digest:.80}")


class LibraryFile:
    """Verified bytes as a file that the dynamic loader can open and other users cannot change.

    The file stays open as long as the process: loaded code is never unloaded, and the loader
    identifies libraries by name, so a name must not be used twice.
    """

    def __init__(self, binary: bytes, *, name: str) -> None:
        self._folder: Path | None = None
        try:
            self._fd = os.memfd_create(f"retuned-{name}")
            self.path = Path(f"/proc/self/fd/{self._fd}")
        except (AttributeError, OSError):  # no memfd: use a folder that only this user can enter
            self._folder = Path(tempfile.mkdtemp(prefix="retuned-"))
            self.path = self._folder / f"{name}.so"
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o500)
        view = memoryview(binary)
        while view:
            view = view[os.write(self._fd, view) :]
        if self._folder is not None:
            os.close(self._fd)  # a file open for writing cannot be mapped for execution

    def clean(self) -> None:
        """Remove the name once the library is loaded; anonymous files have none."""
        if self._folder is not None:
            self.path.unlink(missing_ok=True)
            self._folder.rmdir()


def check_symbol(path: Path, entry: str) -> None:
    """Load a library and verify that it has the entry.

    Raises
    ------
    Refused
        ``load-failed`` or ``entry-missing``.
    """
    try:
        library = ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL)
    except OSError as error:
        raise Refused("load-failed", detail=str(error)[:400]) from error
    if not hasattr(library, entry):
        raise Refused("entry-missing", detail=f"the binary has no symbol '{entry}'")


def _read_file(path: Path, *, limit: int) -> bytes:
    """Read a regular file of at most `limit` bytes without following a link."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Refused("artifact-missing", detail=f"{path}: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Refused("artifact-invalid", detail=f"{path} is not a regular file")
    with os.fdopen(fd, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise Refused("artifact-too-large", detail=f"{path} has more than {limit} bytes")
    return data


def _precompiled(body: Mapping[str, Any], folder: Path) -> tuple[PrecompiledEntry, ...]:
    rows = body.get("precompiled")
    if rows is None:
        return ()
    return parse_precompiled(
        rows, _read_file(folder / PRECOMPILED_FILE, limit=MAX_PRECOMPILED_BYTES)
    )


def _signature(folder: Path) -> bytes | None:
    if not os.path.lexists(folder / SIGNATURE_FILE):
        return None
    return _read_file(folder / SIGNATURE_FILE, limit=MAX_SIGNATURE_BYTES)


def _manifest(data: bytes) -> Mapping[str, Any]:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Refused("artifact-invalid", detail=f"artifact.json: {error!r:.200}") from error
    if not isinstance(body, dict):
        raise Refused("artifact-invalid", detail="artifact.json is not an object")
    return body


def _layouts(body: Mapping[str, Any], spec: Spec) -> dict[str, str]:
    value = body.get("layouts", {})
    if not isinstance(value, Mapping):
        raise _invalid("layouts", "is not an object")
    constants = {spec.inputs[index].name for index in spec.constant_inputs}
    wanted = {}
    for name, layout in value.items():
        if layout == "as-is":
            continue
        if name not in constants or not isinstance(layout, str):
            raise _invalid("layouts", f"names {name!r:.80}, which is not a constant input")
        wanted[str(name)] = layout
    return wanted


def _params(body: Mapping[str, Any]) -> dict[str, int | str]:
    value = body.get("params", {})
    if not isinstance(value, Mapping) or len(value) > MAX_PARAMS:
        raise _invalid("params", f"is not an object of at most {MAX_PARAMS} entries")
    for name, choice in value.items():
        if not _SYMBOL.match(name) or type(choice) not in (int, str) or len(str(choice)) > 200:
            raise _invalid("params", f"has {name!r:.80}, not a whole number or short text")
    return dict(value)


def _grid(body: Mapping[str, Any]) -> tuple[str, ...]:
    value = body.get("grid", [])
    if not isinstance(value, list) or len(value) > 3:
        raise _invalid("grid", "is not a list of at most three expressions")
    if not all(isinstance(expression, str) for expression in value):
        raise _invalid("grid", "contains something that is not text")
    return tuple(value)  # parsed by the loader


def _objects(body: Mapping[str, Any], field: str) -> tuple[Mapping[str, Any], ...]:
    value = body.get(field, [])
    if not isinstance(value, list) or len(value) > MAX_OBJECTS:
        raise _invalid(field, f"is not a list of at most {MAX_OBJECTS} objects")
    if not all(isinstance(each, Mapping) for each in value):
        raise _invalid(field, "contains something that is not an object")
    return tuple(value)


def _matching(body: Mapping[str, Any], field: str, pattern: re.Pattern[str]) -> str:
    value = body.get(field)
    if not isinstance(value, str) or not pattern.match(value):
        raise _invalid(field, "is not a plain name")
    return value


def _bounded(body: Mapping[str, Any], field: str, *, low: int, high: int) -> int:
    value = body.get(field, low)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise _invalid(field, f"is not a whole number from {low} to {high}")
    return value


def _invalid(field: str, problem: str) -> Refused:
    return Refused("artifact-invalid", detail=f"artifact.json: '{field}' {problem}")
