"""The other side of a server's pipes: a process with kernels under Triton's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from retuned.catalog.user import entry_of
from retuned.contract import Language
from retuned.experiment.local import LocalLab
from retuned.lifting.lift import Lifted

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("serving.py")


class Server:
    """The program on the other side of two pipes."""

    def __init__(self, *given: Path, program: Path = PROGRAM) -> None:
        environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [sys.executable, str(program), *map(str, given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        self.said: dict[str, Any] = self.read()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(body) + "\n")
        self.process.stdin.flush()
        return self.read()

    def swap(self, one: Lifted, folder: Path, *, params: dict[str, int], **more: int) -> Any:
        """Order a variant with other parameters; return what the server says, and its sample."""
        entry = entry_of(one.own, Language.TRITON)
        candidate = entry.solution("lifted", {**entry.incumbent.params, **params})
        lab = LocalLab(folder, subjects=lambda _: entry, solutions=lambda _: None, generators={})
        built = lab.build(candidate)
        ordered = {"definition": one.own.name, "digest": candidate.digest, "folder": str(built)}
        said = self.ask({**ordered, **more})
        (sample,) = [each for each in said["samples"] if each["definition"] == one.own.name]
        return said, sample

    def close(self) -> None:
        """End it."""
        self.process.communicate(timeout=200)
