"""The server of the show: ``python -m benchmarks.gpu.live.server``. It is a separate process.

The demo's endpoint and engine, over `benchmarks.gpu.live.model`. The environment decides whether
Retuned is in it, as in any server: ``RETUNED_RUNTIME=off`` for the control, ``RETUNED_TRITON=on``
for interception. Beside the demo's routes it has a few for the show::

    POST /live/windows  {"on": bool}             begin profiler windows, or no more
    POST /live/hold     {"on": bool}             let no step begin until told
    POST /live/check    {"prompt", "tokens"}     gaps to the largest logit, answer taken as given
    GET  /live/steps                             decode steps by bucket, memory
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from pydantic import Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from retuned.contract import Record
from retuned.demo.batches import StepReport
from retuned.demo.responses import refusal
from retuned.demo.server import die_with_parent, serve_model, windows_of
from retuned.errors import RetunedError

if TYPE_CHECKING:
    from benchmarks.gpu.live.model import LiveModel

    from retuned.demo.batches import StepHook
    from retuned.demo.profiler import ProfilerWindows

_HOLD_S = 30.0
"""Longest hold: a client that does not end its hold stops the server for at most this."""
_STALL_S = 1.5
_MAX_BODY_BYTES = 64 * 1024
R = TypeVar("R", bound=Record)
Token = Annotated[int, Field(strict=True, ge=0)]


class Switch(Record):
    """Body of the switches."""

    on: bool = Field(strict=True)
    """The state asked for."""


class Asked(Record):
    """Body of a check."""

    prompt: tuple[Token, ...] = Field(min_length=1)
    """Token ids."""
    tokens: tuple[Token, ...] = Field(min_length=1)
    """The answer."""


class Gate:
    """A step hook that holds steps back, so that a batch is composed of what was sent meanwhile."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()

    def switch(self, *, hold: bool) -> None:
        """Hold, or let go."""
        self._open.clear() if hold else self._open.set()

    def before_step(self) -> None:
        """Wait while held."""
        if not self._open.wait(_HOLD_S):
            self._open.set()

    def after_step(self, report: StepReport) -> None:
        """Nothing is held after a step."""

    def stopped(self) -> None:
        """Nothing runs any more."""
        self._open.set()


class Extras:
    """The show's routes.

    Parameters
    ----------
    model
        What is served.
    gate
        Holds steps.
    windows
        Profiler windows; None where none are taken.
    """

    def __init__(self, model: LiveModel, *, gate: Gate, windows: ProfilerWindows | None) -> None:
        self._model = model
        self._gate = gate
        self._windows = windows

    def routes(self) -> list[Route]:
        """Return them."""
        return [
            Route("/live/windows", self.profile, methods=["POST"]),
            Route("/live/hold", self.hold, methods=["POST"]),
            Route("/live/check", self.check, methods=["POST"]),
            Route("/live/steps", self.steps),
        ]

    async def profile(self, request: Request) -> Response:
        """Switch profiler windows."""
        asked = await _read(request, Switch)
        if isinstance(asked, Response):
            return asked
        if self._windows is not None:
            self._windows.paused = not asked.on
        return JSONResponse({"on": asked.on and self._windows is not None})

    async def hold(self, request: Request) -> Response:
        """Hold steps, or let go."""
        asked = await _read(request, Switch)
        if isinstance(asked, Response):
            return asked
        self._gate.switch(hold=asked.on)
        return JSONResponse({"on": asked.on})

    async def check(self, request: Request) -> Response:
        """Say how far each token of an answer is from what this server would have said.

        Ask only while nothing is served: the model is not made for two threads.
        """
        asked = await _read(request, Asked)
        if isinstance(asked, Response):
            return asked
        if len(asked.prompt) + len(asked.tokens) > self._model.shape.max_tokens + 1:
            return refusal(400, "prompt and answer are longer than the model holds")
        gaps = await asyncio.to_thread(self._model.gaps, asked.prompt, asked.tokens)
        return JSONResponse({"gaps": gaps})

    async def steps(self, _: Request) -> Response:
        """Count decode steps by bucket."""
        return JSONResponse({"decode_steps": self._model.steps, "graphs": self._model.captured})


async def _read(request: Request, kind: type[R]) -> R | Response:
    body = await request.body()
    if len(body) > _MAX_BODY_BYTES:
        return refusal(413, f"a body may have {_MAX_BODY_BYTES} bytes")
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        return refusal(400, f"{error.error_count()} fields are wrong")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu.live.server", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--mode", choices=("eager", "graphs"), default="eager")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--model", choices=("gpu", "tiny"), default="gpu")
    parser.add_argument("--socket-dir", type=Path, help="for the control socket")
    parser.add_argument("--trace-dir", type=Path, help="profiler windows go here; none if absent")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-running", type=int, default=16)
    parser.add_argument("--token-budget", type=int, default=1024)
    parser.add_argument("--window-every-s", type=float, default=2.0)
    parser.add_argument("--window-steps", type=int, default=8)
    parser.add_argument("--keep-traces", type=int, default=400)
    return parser.parse_args(arguments)


def watch_for_stalls() -> None:
    """Have every stack written to stderr whenever no Python thread of this process ran for long."""

    def beat() -> None:
        while True:
            faulthandler.dump_traceback_later(_STALL_S)
            time.sleep(_STALL_S / 4)

    threading.Thread(target=beat, name="stalls", daemon=True).start()


def main(arguments: Sequence[str]) -> None:
    """Serve until told to stop."""
    started_s = time.monotonic()
    options = parse(arguments)
    die_with_parent()
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    import torch
    import triton  # noqa: F401 - both are there when Retuned attaches: it follows them at once
    from benchmarks.gpu.live.model import SHAPES, LiveModel

    from retuned.runtime import attach

    attach(server=f"live-{options.mode}", socket_dir=options.socket_dir)
    watch_for_stalls()
    torch.set_num_threads(1)
    shape = SHAPES[options.model]
    model = LiveModel(
        shape,
        max_sequences=options.max_running,
        seed=options.seed,
        device=options.device,
        graphs=options.mode == "graphs",
    )
    gate = Gate()
    windows = None if options.trace_dir is None else windows_of(options)
    hooks: list[StepHook] = [gate]
    if windows is not None:
        hooks.append(windows)
    with ExitStack() as cleanup:
        serve_model(
            model,
            options,
            shape=shape,
            cleanup=cleanup,
            started_s=started_s,
            hooks=hooks,
            routes=Extras(model, gate=gate, windows=windows).routes(),
        )


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        main(sys.argv[1:])
    except RetunedError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
