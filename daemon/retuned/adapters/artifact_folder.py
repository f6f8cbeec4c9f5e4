"""The folder of a compiled variant, as a server's runtime reads it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retuned.contract import Definition, Solution
from retuned.lab.toolchain import Artifact

MANIFEST = "artifact.json"
"""Says what the binary beside it is."""


def keep_artifact(
    target: Path, built: Artifact, *, solution: Solution, definition: Definition
) -> None:
    """Write the folder; a kill leaves all of it or nothing, and the first of several wins.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=target.parent))
    try:
        shutil.copyfile(built.variant.library, partial / built.file_name)
        body = manifest_of(
            solution,
            definition.model_dump(mode="json"),
            built.sha256,
            file_name=built.file_name,
        )
        body |= built.manifest
        (partial / MANIFEST).write_text(
            json.dumps(body, indent=1),
            encoding="utf-8",  # the order of axes means something
        )
        partial.chmod(0o755)
        os.rename(partial, target)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        if not (target / MANIFEST).exists():  # else: another process was first
            raise


def manifest_of(
    solution: Solution,
    definition: Mapping[str, Any],
    sha256: str,
    *,
    file_name: str = "kernel.so",
) -> dict[str, Any]:
    """Return what the manifest of every language holds.

    Parameters
    ----------
    solution
        The variant.
    definition
        What it computes, as JSON.
    sha256
        Hex digest of the binary.
    file_name
        Name of the binary.
    """
    threads = solution.params.get("THREADS", 1)
    return {
        "digest": solution.digest,
        "definition": definition,
        "language": str(solution.language),
        "entry": solution.entry,
        "params": solution.params,
        "layouts": solution.layouts,
        "scratch_bytes": solution.scratch_bytes,
        "parts": threads if isinstance(threads, int) else 1,
        "binary": file_name,
        "binary_sha256": sha256,
    }
