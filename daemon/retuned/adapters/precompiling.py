"""Compiled code for the servers of an artifact, from the lab that measured the variant.

A variant whose code depends on lengths needs one code for each of the lengths it will run at. Those
of the plan that found it are kept beside the lab's other files, because an artifact is built when a
swap is ordered, which may be days later and in another process. What cannot be compiled here is
compiled by the server when it prepares, as it would be anyway.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from retuned.contract import Definition, Language, Solution, Workload
from retuned.errors import CompileFailed, MissingDependency
from retuned.lab.languages.gpu import find_gpu
from retuned.lab.languages.limits import CompileLimits
from retuned.lab.languages.triton_precompile import precompile, precompile_served
from retuned.runtime.precompiled import PrecompiledEntry

log = logging.getLogger(__name__)

SHAPES = "shapes"
"""Folder of the shapes that plans were for."""
MAX_SHAPES = 256
"""Most shapes kept of one definition."""
_MAX_BYTES = 1 << 20


class Precompiler:
    """Compiles winners for the architecture of this machine's GPU.

    Parameters
    ----------
    root
        The lab's folder.
    arch
        Architecture of the servers; None takes this machine's GPU, and compiles nothing where
        there is none.
    """

    def __init__(self, root: Path, *, arch: str | None = None) -> None:
        self._root = root
        self._arch = arch

    def remember(self, definition: str, workloads: Iterable[Workload]) -> None:
        """Keep the shapes of a plan; those of the latest plan of a definition count."""
        path = self._path(definition)
        shapes = [dict(each.axes) for each in workloads][:MAX_SHAPES]
        partial = path.with_suffix(f".{os.getpid()}.{secrets.token_hex(4)}.partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            partial.write_text(json.dumps(shapes), encoding="utf-8")
            partial.replace(path)
        except OSError as error:
            log.warning("shapes of %s are not kept: %s", definition, error)
        finally:
            partial.unlink(missing_ok=True)

    def shapes_of(self, definition: Definition) -> list[dict[str, int]]:
        """Return the shapes of the latest plan that are of the definition; none if unknown."""
        try:
            with self._path(definition.name).open("rb") as file:
                body = json.loads(file.read(_MAX_BYTES))
        except (OSError, ValueError):
            return []
        wanted = set(definition.variable_axes)
        rows = body if isinstance(body, list) else []
        return [row for row in rows[:MAX_SHAPES] if _is_shape(row, wanted)]

    def entries_for(
        self,
        solution: Solution,
        definition: Definition,
        *,
        manifest: Mapping[str, Any],
        limits: CompileLimits | None = None,
    ) -> Sequence[PrecompiledEntry]:
        """Return code for the servers of an artifact; none where its servers compile as ever.

        Parameters
        ----------
        solution, definition
            What the artifact is of.
        manifest
            What its manifest says beside; other parameters of a server's own code are compiled
            from that code, which only the server has.
        limits
            Bounds of the compiler; None takes the language's.

        Raises
        ------
        CandidateError
            If the audit finds in the code for servers what no kernel has a use for.
        """
        intercept = manifest.get("intercept", {})
        entry = manifest.get("entry", solution.entry)
        if solution.language is not Language.TRITON or intercept.get("code") == "live":
            return ()
        try:
            arch = self._arch or _arch_here()
            if arch is None:
                return ()
            if entry != solution.entry:
                return precompile_served(
                    solution, definition, arch=arch, entry=entry, intercept=intercept, limits=limits
                )
            shapes = self.shapes_of(definition)
            return precompile(solution, definition, arch=arch, shapes=shapes, limits=limits)
        except (CompileFailed, MissingDependency) as error:
            log.warning("%s: its servers compile it themselves: %s", solution.name, error)
            return ()

    def _path(self, definition: str) -> Path:
        name = hashlib.sha256(definition.encode()).hexdigest()
        return self._root / SHAPES / f"{name}.json"


def _arch_here() -> str | None:
    gpu = find_gpu()
    return None if gpu is None else gpu.arch


def _is_shape(row: object, axes: set[str]) -> bool:
    return (
        isinstance(row, dict)
        and set(row) == axes
        and all(type(length) is int and 0 <= length < 2**40 for length in row.values())
    )
