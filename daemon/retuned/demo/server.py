"""The demo's inference server: ``python -m retuned.demo.server``. It is a separate process.

When it takes requests it prints one JSON line, ``{"port": ..., "pid": ..., "ready_s": ...}``, and
nothing else on stdout. SIGTERM ends it cleanly; so does the death of the thread that started it.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retuned.errors import HarnessError, MissingDependency, RetunedError, UsageError

if TYPE_CHECKING:
    from starlette.routing import Route

    from retuned.demo.batches import Model, StepHook
    from retuned.demo.operators import Operators
    from retuned.demo.profiler import ProfilerWindows
    from retuned.demo.shapes import ModelShape

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_KEEP_ALIVE_S = 600  # longer than any client keeps a connection: it never sees one close under it
_GRACE_S = 3


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="retuned.demo.server", description=__doc__)
    parser.add_argument(
        "--host", default="127.0.0.1", help="0.0.0.0 where others may ask, as in a pod"
    )
    parser.add_argument("--port", type=int, default=0, help="0 lets the system choose")
    parser.add_argument("--socket-dir", type=Path, required=True, help="for the control socket")
    parser.add_argument("--trace-dir", type=Path, help="profiler windows go here; none if absent")
    parser.add_argument("--cache-dir", type=Path, required=True, help="for compiled kernels")
    parser.add_argument("--cores", default="", help="cores to stay on, for example 0 or 0,2")
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="cuda is any GPU that PyTorch has, of either vendor",
    )
    parser.add_argument("--model", choices=("demo", "gpu", "tiny"), help="by the device if absent")
    parser.add_argument("--kernels", choices=("catalog", "plain"), default="catalog")
    parser.add_argument("--seed", type=int, default=0, help="of the random weights")
    parser.add_argument("--max-running", type=int, default=16, help="sequences in the batch")
    parser.add_argument("--token-budget", type=int, help="tokens in a step; 256, on a GPU 512")
    parser.add_argument("--window-every-s", type=float, default=2.5)
    parser.add_argument("--window-steps", type=int, default=10)
    parser.add_argument("--keep-traces", type=int, default=64, help="older files are removed")
    parser.add_argument("--allow-fault", action="store_true", help="take POST /demo/fault")
    parser.add_argument(
        "--swapped-cost",
        type=float,
        default=1.0,
        help="each launch of a swapped kernel takes so many times its time; 4 makes swaps harm",
    )
    options = parser.parse_args(arguments)
    if not 1.0 <= options.swapped_cost <= 100.0:
        parser.error(f"--swapped-cost is 1 to 100, not {options.swapped_cost:g}")
    gpu = options.device == "cuda"
    options.model = options.model or ("gpu" if gpu else "demo")
    options.token_budget = options.token_budget or (512 if gpu else 256)
    return options


def main(arguments: Sequence[str]) -> None:
    """Serve until a signal, or until the parent ends.

    Raises
    ------
    RetunedError
        If the server cannot start.
    """
    started_s = time.monotonic()
    options = parse(arguments)
    die_with_parent()
    if options.cores:
        os.sched_setaffinity(0, {int(core) for core in options.cores.split(",")})
    # Read by libraries when torch is imported, which is why torch is imported only below.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TRITON_CACHE_DIR", str(options.cache_dir / "triton"))
    with ExitStack() as cleanup:
        serve(options, cleanup, started_s=started_s)


def serve(options: argparse.Namespace, cleanup: ExitStack, *, started_s: float) -> None:
    """Build the demo's model and serve it."""
    import torch

    from retuned.demo.decode import gpu_decoding
    from retuned.demo.model import DecoderModel
    from retuned.demo.shapes import SHAPES

    torch.set_num_threads(1)
    if options.device == "cuda" and not torch.cuda.is_available():
        raise MissingDependency("no GPU that PyTorch can use; --device cpu needs none")
    shape = SHAPES[options.model]
    operators, inject_fault, timed = _operators(options, shape)
    windows = [] if options.trace_dir is None else [windows_of(options)]
    for each in windows:
        each.disturbs = timed
    model = DecoderModel(
        shape,
        operators,
        max_sequences=options.max_running,
        seed=options.seed,
        device=options.device,
        decoding=gpu_decoding() if options.device == "cuda" else None,
    )
    serve_model(
        model,
        options,
        shape=shape,
        cleanup=cleanup,
        started_s=started_s,
        hooks=windows,
        inject_fault=inject_fault,
    )


def serve_model(
    model: Model[Any],
    options: argparse.Namespace,
    *,
    shape: ModelShape,
    cleanup: ExitStack,
    started_s: float,
    hooks: Sequence[StepHook] = (),
    routes: Sequence[Route] = (),
    inject_fault: Callable[[str], None] | None = None,
) -> None:
    """Put the engine and the HTTP server in front of a model, and run them until told to stop.

    Parameters
    ----------
    model
        What computes.
    options
        ``host``, ``port``, ``token_budget`` and ``max_running`` of them are read.
    shape
        Of the model: which tokens it knows and how many it holds.
    cleanup
        Closes the listener at the end.
    started_s
        Monotonic seconds at which the process began.
    hooks
        Called around each step, after the metrics.
    routes
        Served beside the demo's.
    inject_fault
        As `Service`.
    """
    import uvicorn
    from prometheus_client import CollectorRegistry

    from retuned.demo.app import Service
    from retuned.demo.batches import EngineLimits
    from retuned.demo.engine import Engine
    from retuned.demo.metrics import ServerMetrics
    from retuned.demo.responses import Mailboxes

    listener = cleanup.enter_context(_listen(options.host, options.port))
    metrics = ServerMetrics(CollectorRegistry())
    mailboxes = Mailboxes()
    limits = EngineLimits(token_budget=options.token_budget, max_running=options.max_running)
    engine = Engine(model, limits=limits, deliver=mailboxes.deliver, hooks=[metrics, *hooks])
    service = Service(engine, mailboxes, metrics=metrics, shape=shape, inject_fault=inject_fault)

    def ready() -> None:
        _announce(listener, ready_s=time.monotonic() - started_s)

    configuration = uvicorn.Config(
        service.app(on_ready=ready, routes=routes),
        loop="asyncio",
        http="h11",
        ws="none",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_GRACE_S,
    )
    # uvicorn drains on SIGTERM and raises it again when done; then there is nothing left to do.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    # as vLLM does: a collection that visits all of PyTorch stops every request for 0.3 s
    gc.collect()
    gc.freeze()
    uvicorn.Server(configuration).run(sockets=[listener])


def _operators(
    options: argparse.Namespace, shape: ModelShape
) -> tuple[Operators, Callable[[str], None] | None, Callable[[], bool]]:
    """Return the operators, what breaks a slot, and whether a live proof times steps now."""
    from retuned.demo.operators import plain_operators

    if options.kernels == "plain":
        return plain_operators(), None, lambda: False
    from retuned.demo.fault import FaultInjector
    from retuned.demo.kernels import slotted_operators
    from retuned.runtime import attach

    runtime = attach(
        server="demo", socket_dir=options.socket_dir, windows=options.trace_dir is None
    )
    slotted = slotted_operators(shape, runtime, cache_dir=options.cache_dir, device=options.device)
    faults = FaultInjector(slotted.slots)
    if options.swapped_cost > 1.0:
        faults.make_dearer(options.swapped_cost)
    return (
        slotted.operators,
        faults.inject if options.allow_fault else None,
        lambda: runtime.steps.log.recording,
    )


def windows_of(options: argparse.Namespace) -> ProfilerWindows:
    """Return the profiler windows that the options ask for, ready to begin."""
    from retuned.demo.profiler import ProfilerWindows, WindowSettings

    settings = WindowSettings(
        every_s=options.window_every_s,
        max_steps=options.window_steps,
        keep_files=options.keep_traces,
    )
    windows = ProfilerWindows(options.trace_dir, settings=settings, gpu=options.device == "cuda")
    windows.warm_up()
    return windows


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise UsageError(
            f"port {port} cannot be had on {host} ({error.strerror}); 0 finds one"
        ) from error
    return listener


def _announce(listener: socket.socket, *, ready_s: float) -> None:
    line = {
        "port": listener.getsockname()[1],
        "pid": os.getpid(),
        "ready_s": round(ready_s, 3),
    }
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def die_with_parent() -> None:
    """Get SIGTERM when the starting thread ends, so that no server outlives its story."""
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise HarnessError(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        raise HarnessError("the parent died before the server started")


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        main(sys.argv[1:])
    except RetunedError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
