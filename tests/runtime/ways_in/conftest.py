"""Programs as strangers write them: a PyTorch that is two lines, other people's sitecustomize."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import retuned.runtime.site

SITE = Path(retuned.runtime.site.__file__).parent


@dataclass
class Machine:
    """Runs programs with the injected folder on ``PYTHONPATH``."""

    folder: Path
    site: Path = SITE
    python: str = sys.executable
    variables: dict[str, str] = field(default_factory=dict)
    path: list[str] = field(default_factory=list)
    """Folders after ours on ``PYTHONPATH``."""
    first: list[str] = field(default_factory=list)
    """Folders before ours."""

    def module(self, name: str, text: str = "", *, where: str = "lib") -> Path:
        """Write a module into a folder; the folder is returned."""
        folder = self.folder / where
        file = folder / Path(*name.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return folder

    def run(
        self,
        program: str,
        *flags: str,
        variables: Mapping[str, str | None] | None = None,
        inject: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program's text, or a file named by the flags, and return what it printed."""
        found = {k: v for k, v in os.environ.items() if not k.startswith(("RETUNED_", "PYTHON"))}
        path = [*self.first, *([str(self.site)] if inject else []), *self.path]
        found |= {
            "PYTHONPATH": os.pathsep.join(path),
            "RETUNED_SOCKET_DIR": str(self.folder / "s"),
            "PYTHONDONTWRITEBYTECODE": "1" if self.python != sys.executable else "",
        } | self.variables
        for name, value in (variables or {}).items():
            if value is None:
                found.pop(name, None)
            else:
                found[name] = value
        return subprocess.run(
            [self.python, *flags, *(["-c", program] if program else [])],
            env=found,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )

    def said(self, program: str, *flags: str, **options: Mapping[str, str | None]) -> str:
        """Run a program that must end well and quietly; return what it printed on stdout."""
        done = self.run(program, *flags, **options)  # type: ignore[arg-type]
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout.strip()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Return a machine with a `torch` of no consequence."""
    made = Machine(tmp_path)
    made.path.append(str(made.module("torch", "answer = 42\n")))
    return made
