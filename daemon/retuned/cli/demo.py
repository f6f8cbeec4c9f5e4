"""``retuned demo``: the whole loop on this machine, on traffic with the shape of real services."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from retuned.cli.output import JsonFlag, check_writable, emit_json, say, stdout, write_page
from retuned.demo.options import DemoOptions
from retuned.demo.outcome import Ending, Plot, shortcomings
from retuned.demo.processes import Cores
from retuned.demo.story import Story
from retuned.errors import MissingDependency, UsageError
from retuned.report import pages, text
from retuned.stages.gate import DecisionKind, SwapDecision
from retuned.store.approvals import Approvals, local_identity
from retuned.store.sqlite import DATABASE, SqliteStore

_SOURCE = Path(__file__).resolve().parents[3] / "policies" / "laptop-demo.yaml"
_PACKAGED = Path(__file__).resolve().parents[1] / "demo" / "data" / "laptop-demo.yaml"
"""What a wheel has instead of the file of a clone."""
_POLICY = _SOURCE if _SOURCE.is_file() else _PACKAGED
_HTML = Path("retuned-demo-report.html")


class Device(StrEnum):
    """Where the demo serves."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


def demo(
    yes: Annotated[bool, typer.Option("--yes", help="Approve proposals by itself.")] = False,
    as_json: JsonFlag = False,
    html: Annotated[Path, typer.Option(help="Where the report page goes.")] = _HTML,
    keep: Annotated[
        Path | None, typer.Option(help="Keep state, traces and logs in this folder.")
    ] = None,
    policy: Annotated[Path, typer.Option(help="Gate policy.")] = _POLICY,
    seed: Annotated[int, typer.Option(help="Of weights and traffic.")] = 0,
    harmful_swap: Annotated[
        bool,
        typer.Option(
            "--harmful-swap",
            help="Another story: each swapped kernel costs the server more than it saves, and its "
            "live proof must take it back.",
        ),
    ] = False,
    device: Annotated[
        Device, typer.Option(help="Where to serve; auto takes a GPU if PyTorch has one.")
    ] = Device.AUTO,
) -> None:
    """Serve, drift, detect, experiment, validate, approve, swap, prove, and roll a fault back.

    Exit code 1 unless no request failed, a live proof showed that a swap helps the server, no other
    swap stayed, and the fault was rolled back. With --harmful-swap: unless the live proof showed
    that a swap harms the server, and it was rolled back.
    """
    where, said = choose_device(device)
    _check(policy, where)
    _check_places(html, keep)
    say(said)
    folder = keep or Path(tempfile.mkdtemp(prefix="retuned-demo-"))
    try:
        config = _write_config(folder.resolve(), policy.resolve(), where)
        options = DemoOptions(
            folder=folder.resolve(),
            config=config,
            approve=_approver(folder.resolve()) if yes else None,
            device=where.value,
            plot=Plot.HARMFUL if harmful_swap else Plot.HELPFUL,
            seed=seed,
            experiments_timeout_s=400.0 if where is Device.CUDA else 300.0,
        )
        with _terminate_interrupts():
            data = {
                **Story(options, say).run(),
                "machine": _machine(where),
            }
        write_page(html, pages.demo_page(data))
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    _tell(data, html=html, as_json=as_json)


@contextmanager
def _terminate_interrupts() -> Iterator[None]:
    """End on SIGTERM as on an interrupt: server, client and daemon are taken along."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _tell(data: Mapping[str, Any], *, html: Path, as_json: bool) -> None:
    """Print what happened; exit with 1 if it is not what the demo promises."""
    missing = shortcomings(Ending.of(data))
    if as_json:
        emit_json({**data, "passed": not missing, "shortcomings": list(missing)})
    else:
        console = stdout()
        # a page for people: a pipe, which has no width, gets it as wide as a large terminal
        for block in text.demo_text(data, width=min(console.width, 120)):
            console.print(block)
    say(f"the same as a page, with plots: {html}")
    for shortcoming in missing:
        say(f"retuned: the demo did not show what it promises: {shortcoming}")
    if missing:
        raise typer.Exit(1)


def choose_device(asked: Device) -> tuple[Device, str]:
    """Return where to serve, and the sentence that says so.

    Raises
    ------
    MissingDependency
        If the caller asks for a GPU, and the machine has none, or no Triton for it.
    """
    problem = _gpu_problem()
    if asked is Device.CPU:
        return Device.CPU, "on the CPU, with C++ kernels, as chosen"
    if not problem:
        return Device.CUDA, f"on the GPU ({_gpu_name()}), with Triton kernels"
    if asked is Device.CUDA:
        raise MissingDependency(f"{problem}; --device cpu needs neither")
    return Device.CPU, f"on the CPU, with C++ kernels: {problem}"


def _gpu_problem() -> str:
    """Return why no GPU can be used; nothing if one can."""
    try:
        import torch
    except ImportError:
        return "PyTorch is missing"
    if not torch.cuda.is_available():
        return "PyTorch sees no GPU here"
    if importlib.util.find_spec("triton") is None:
        return "there is a GPU, but Triton is missing (pip install triton)"
    return ""


def _gpu_name() -> str:
    import torch

    properties = torch.cuda.get_device_properties(0)
    arch = getattr(properties, "gcnArchName", "").partition(":")[0]
    return f"{properties.name}, {arch}" if arch else str(properties.name)


def _check(policy: Path, device: Device) -> None:
    if device is Device.CPU and not (shutil.which("g++") or shutil.which("c++")):
        raise MissingDependency("no C++ compiler; install g++ (Debian: apt install g++)")
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingDependency("PyTorch is missing; run `make setup`") from error
    if not policy.is_file():
        raise UsageError(f"no policy at {policy}; name one with --policy")


def _check_places(html: Path, keep: Path | None) -> None:
    """Find out before minutes of work whether its results have a place.

    Raises
    ------
    UsageError
        If the page cannot be written, or the folder holds the state of another run.
    """
    check_writable(html)
    if keep is None:
        return
    if keep.exists() and not keep.is_dir():
        raise UsageError(f"--keep {keep}: is not a folder; name another path")
    if (keep / "state" / DATABASE).exists():
        raise UsageError(
            f"--keep {keep}: holds the state of an earlier run, which the report would show as "
            "part of this one; name another folder, or remove that one"
        )


def _write_config(folder: Path, policy: Path, device: Device) -> Path:
    """Write the daemon's settings as a user would; time runs faster than in production."""
    for name in ("state", "traces", "sockets", "cache"):
        (folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
    gpu = device is Device.CUDA
    settings = {
        "state_dir": str(folder / "state"),
        "watch_dirs": [str(folder / "traces")],
        "socket_dir": str(folder / "sockets"),
        "policy_files": [str(policy)],
        "target": "demo",
        "env": "laptop",
        "window_s": 4.0,
        "settle_s": 0.5,
        "baseline_windows": 5,
        "explain_windows": 4,
        "detector_preset": "demo",
        "lab_cores": list(Cores.choose(wide=gpu).lab),
        "lab_language": "triton" if gpu else "cpu_cpp",
        # each that comes to a swap takes one to three minutes of live proof
        "experiments_per_day": 3,
        # every child of a GPU lab starts PyTorch, and every variant goes through its compiler
        "experiment_s_per_day": 300.0 if gpu else 90.0,
        "max_candidates": 8 if gpu else 16,
        "max_experiment_s": 90.0 if gpu else 45.0,
        "max_shapes": 3 if gpu else 5,
        # a GPU server replays its decode steps: few launches pass a slot, those of prompts
        "shadow_every": 5 if gpu else 20,
        "observe_poll_s": 0.5,
        "steer_poll_s": 0.2,
        "metrics_port": 0,
    }
    config = folder / "retuned.yaml"
    config.write_text(json.dumps(settings, indent=2), encoding="utf-8")  # JSON is YAML
    return config


def _approver(folder: Path) -> Callable[[str], None]:
    """Return what a person does with ``retuned approve``, for --yes."""
    store = SqliteStore(folder / "state")
    identity = local_identity({})

    def approve(proposal: str) -> None:
        body = store.get("proposal", proposal)
        gate = store.get("gate", proposal)
        if body is None:
            raise UsageError(f"no proposal {proposal}")
        Approvals(store).give(
            SwapDecision(
                proposal=proposal,
                digest=body.body["artifact"],
                decision=DecisionKind.APPROVE,
                user=identity.user,
                groups=identity.groups,
                comment="approved by retuned demo --yes",
                at=datetime.now(UTC),
                policy_digest=gate.body["policy_digest"] if gate is not None else None,
            )
        )

    return approve


def _machine(device: Device) -> dict[str, Any]:
    pages_of_memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages_of_memory / 2**30),
        "gpu": _gpu_name() if device is Device.CUDA else None,
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
