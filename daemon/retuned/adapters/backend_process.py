"""A search package in a process of its own, with an interpreter of its own.

The child gets a private folder, an environment without secrets, limits, and a word with which it
may ask our listener; it never sees the endpoint or its key. It is a session leader: whatever it
starts is ended with it. It dies with the lab.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import shutil
import signal
import subprocess
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from retuned.adapters.backend_driver import TASK
from retuned.adapters.backend_link import Link, Question, read_chat, whole
from retuned.errors import Refused, TemporaryError
from retuned.lab.generators.evolve.package import (
    BackendFailed,
    ModelAsked,
    Opening,
    ProgramAsked,
    Worth,
)
from retuned.lab.generators.evolve.redaction import line
from retuned.lab.generators.evolve.responses import MAX_SOURCE_CHARS
from retuned.ports import ChatAnswer

log = logging.getLogger(__name__)

Backend = Literal["openevolve", "skydiscover"]
RELEASES: Mapping[str, str] = {"openevolve": "0.4.0", "skydiscover": "0.1.0"}
"""Releases of the packages that were tried."""
_DRIVER = Path(__file__).with_name("backend_driver.py")
_SILENCE_S = 120.0
"""A package that neither asks nor ends for so long hangs: it does nothing but choose."""
_POLL_S = 0.1
_SPARE_S = 3600.0
_ARTIFACT_BYTES = 8_000
_SHOWN = 300


class BackendProcess:
    """A `Package` that runs.

    Parameters
    ----------
    backend
        Which package.
    python
        Interpreter that has it.
    folder
        Its private folder, for one run at a time: what an earlier run left there is removed.
    left_s
        Seconds that the plan has left.
    temperature
        How freely the model chooses; handed to the package, which may want to know it.
    silence_s
        How long it may say nothing.
    """

    def __init__(
        self,
        backend: Backend,
        python: Path,
        *,
        folder: Path,
        left_s: Callable[[], float] = lambda: math.inf,
        temperature: float | None = None,
        silence_s: float = _SILENCE_S,
    ) -> None:
        self.name: str = backend
        self._python = python
        self._left_s = left_s
        self._temperature = temperature
        self._silence_s = silence_s
        self._most_tokens = 0
        self._asked: dict[int, Question] = {}
        self._number = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._link: Link | None = None
        self._folder = folder
        self._finish: weakref.finalize[..., BackendProcess] | None = None

    def start(self, opening: Opening) -> None:
        """Begin; see `Package.start`."""
        self._most_tokens = opening.answer_tokens
        folder = self._folder
        self._link = link = Link()
        self._finish = weakref.finalize(self, _clear, folder, link=link, child=None)
        try:
            _furnish(folder, self._task(link, opening))
            child = _start(self._python, folder)
        except OSError as error:
            self.close()
            raise BackendFailed(
                f"{self.name} cannot be started with {self._python.name}: {error.strerror}"
            ) from error
        self._child = child
        self._finish.detach()
        self._finish = weakref.finalize(self, _clear, folder, link=link, child=child)

    def next(self) -> ModelAsked | ProgramAsked | None:
        """Return what it wants to know; see `Package.next`."""
        child, link = self._child, self._link
        if child is None or link is None:
            raise BackendFailed(f"{self.name} was not started")
        until = time.monotonic() + self._silence_s
        while True:
            question = link.next(_POLL_S)
            if question is not None:
                return self._read(question)
            status = child.poll()
            if status == 0:
                return None
            if status is not None:
                raise BackendFailed(f"{self.name} died with status {status}: {self._last_words()}")
            if self._left_s() <= 0.0:
                raise TemporaryError("the plan's time is over", delay_s=self._silence_s)
            if time.monotonic() > until:
                raise BackendFailed(f"{self.name} said nothing for {self._silence_s:g} s")

    def say(self, asked: ModelAsked, answer: ChatAnswer | Refused | TemporaryError) -> None:
        """Give it the model's answer; see `Package.say`."""
        question = self._asked.pop(asked.number)
        if not isinstance(answer, ChatAnswer):
            status = 503 if isinstance(answer, TemporaryError) else 402
            question.answer({"error": {"message": "there is no answer"}}, status=status)
            return
        usage = {
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": answer.completion_tokens,
            "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        }
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": answer.text},
            "finish_reason": "length" if answer.finish == "length" else "stop",
        }
        question.answer(
            {
                "id": f"retuned-{asked.number}",
                "object": "chat.completion",
                "created": 0,
                "model": "retuned",
                "choices": [choice],
                "usage": usage,
            }
        )

    def tell(self, asked: ProgramAsked, worth: Worth) -> None:
        """Give it what a program is worth; see `Package.tell`."""
        question = self._asked.pop(asked.number)
        artifacts = {name: text[:_ARTIFACT_BYTES] for name, text in worth.artifacts.items()}
        question.answer({"metrics": dict(worth.metrics), "artifacts": artifacts})

    def close(self) -> None:
        """End it; see `Package.close`."""
        if self._finish is not None:
            self._finish()

    def _read(self, question: Question) -> ModelAsked | ProgramAsked:
        """Give a question its number, or end a package whose questions make no sense."""
        number, self._number = self._number, self._number + 1
        self._asked[number] = question
        if question.path == "program":
            text = question.body.get("program")
            if isinstance(text, str):
                return ProgramAsked(number=number, text=whole(text))
            raise BackendFailed(f"{self.name} asked for the worth of what is no program")
        request = read_chat(question.body, most_tokens=self._most_tokens)
        if request is None:
            raise BackendFailed(f"{self.name} asked its model in a form that is not known")
        return ModelAsked(number=number, request=request)

    def _task(self, link: Link, opening: Opening) -> dict[str, Any]:
        left_s = self._left_s()
        wait_s = int((left_s if math.isfinite(left_s) else 0.0) + _SPARE_S)
        return {
            "backend": self.name,
            "parent": os.getpid(),
            "url": link.url,
            "token": link.token,
            "timeout_s": wait_s,
            "cpu_s": wait_s,
            "program": opening.program,
            "suffix": opening.suffix,
            "language": opening.language,
            "system": opening.system,
            "iterations": opening.iterations,
            "islands": opening.islands,
            "answer_tokens": opening.answer_tokens,
            "temperature": 0.7 if self._temperature is None else self._temperature,
            "seed": opening.seed % 2**31,
            "source_chars": MAX_SOURCE_CHARS,
            "artifact_bytes": 2 * _ARTIFACT_BYTES,
        }

    def _last_words(self) -> str:
        """Return the end of what it printed; a stranger's text."""
        try:
            with (self._folder / "said").open("rb") as stream:
                size = stream.seek(0, os.SEEK_END)
                stream.seek(max(0, size - _SHOWN))
                return line(stream.read(_SHOWN).decode("utf-8", "replace"), _SHOWN) or "no words"
        except OSError:
            return "no words"


def missing_backend(backend: str) -> str:
    """Return the commands that make an environment with a package."""
    release = RELEASES[backend]
    return (
        f"python3 -m venv ~/{backend} && ~/{backend}/bin/pip install {backend}=={release}, then "
        f"evolve_backend_python: ~/{backend}/bin/python"
    )


def _furnish(folder: Path, task: Mapping[str, Any]) -> None:
    """Make the private folder, with the driver and what it shall do."""
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
    folder.mkdir(parents=True, mode=0o700)
    (folder / "tmp").mkdir()
    (folder / TASK).write_text(json.dumps(task), encoding="utf-8")
    shutil.copyfile(_DRIVER, folder / "driver.py")


def _start(python: Path, folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "said").open("wb") as said:
        return subprocess.Popen(
            [python, "-I", folder / "driver.py"],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=_environment(folder),
            start_new_session=True,
        )


def _environment(folder: Path) -> dict[str, str]:
    """Return what the child knows of this machine: next to nothing."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(folder),
        "TMPDIR": str(folder / "tmp"),
        "LANG": "C.UTF-8",
        "NO_PROXY": "*",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }


def _clear(folder: Path, *, link: Link, child: subprocess.Popen[bytes] | None) -> None:
    """End the child with all its processes, stop listening, and remove the folder."""
    if child is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    link.close()
    shutil.rmtree(folder, ignore_errors=True)
