"""Attach Retuned to a server: never raises into it, ``RETUNED_RUNTIME=off`` turns it off."""

from __future__ import annotations

import os
from pathlib import Path

from retuned.runtime import intercept
from retuned.runtime.attached import Runtime, attached, keep
from retuned.runtime.host import RuntimeHost
from retuned.runtime.intercept.service import Interception
from retuned.runtime.leftovers import own_path
from retuned.runtime.listening import PeerUid, peer_uid
from retuned.runtime.shadow import Compare, compare_tensors
from retuned.runtime.windows.pacing import Rule, rule_of


def attach(
    socket_path: Path | str | None = None,
    *,
    server: str = "",
    socket_dir: Path | str | None = None,
    artifacts_dir: Path | str | None = None,
    compare: Compare = compare_tensors,
    credentials: PeerUid = peer_uid,
    triton: bool | None = None,
    at_once: bool = True,
    windows: bool = True,
) -> Runtime:
    """Attach Retuned to this process.

    Parameters
    ----------
    socket_path
        Control socket of exactly this process.
    server
        Name of the server, for people.
    socket_dir
        Folder in which every process of the server has its own ``<pid>.sock``; used where
        `socket_path` is not given. ``RETUNED_SOCKET_DIR`` is the default; without any of them slots
        count and nothing can be swapped.
    artifacts_dir
        Folder that artifacts must be inside; ``RETUNED_ARTIFACTS_DIR`` is the default.
    compare
        Judges outputs in shadow and self checks; another one for other devices.
    credentials
        Tells the user id of a peer.
    triton
        Whether launches of the server's Triton kernels are intercepted until `Runtime.close`; by
        default only where ``RETUNED_TRITON=on`` is set. `intercept.install` does the same later.
    at_once
        False listens only once there is something to swap. What was attached so, by a plugin, gives
        way to who attaches by hand: a process has one socket.
    windows
        Whether the runtime profiles now and then, where ``RETUNED_TRACE_DIR`` names a folder for it
        (``docs/running.md``); False for a server that profiles itself.
    """
    folder = socket_dir or os.environ.get("RETUNED_SOCKET_DIR")
    artifacts = artifacts_dir or os.environ.get("RETUNED_ARTIFACTS_DIR")
    enabled = _is_on("RETUNED_RUNTIME")
    for other in attached() if at_once else ():
        if not other.at_once:  # joined by a plugin
            triton = triton is not False and (other.intercepts or triton)
            other.close()

    owner = os.getpid()

    def path() -> Path | None:
        if socket_path is not None:  # a forked child must not take it from its parent
            return Path(socket_path) if os.getpid() == owner else None
        return own_path(Path(folder) / f"{os.getpid()}.sock") if folder else None

    runtime = Runtime(
        RuntimeHost(
            server,
            artifacts_dir=Path(artifacts) if artifacts else None,
            compare=compare,
            may_capture=_is_on("RETUNED_CAPTURE"),
            interception=Interception(intercept.current()),
        ),
        socket_path=path,
        enabled=enabled,
        credentials=credentials,
        at_once=at_once,
        windows=_windows_wanted() if windows else None,
    )
    if enabled:
        if triton if triton is not None else _is_asked("RETUNED_TRITON"):
            runtime.intercept_triton()
        keep(runtime)
    return runtime


def _windows_wanted() -> tuple[Path, Rule] | None:
    rule = rule_of(os.environ)
    return None if rule is None else (Path(os.environ["RETUNED_TRACE_DIR"].strip()), rule)


def _is_on(variable: str) -> bool:
    return os.environ.get(variable, "").strip().lower() not in ("off", "0", "false")


def _is_asked(variable: str) -> bool:
    return os.environ.get(variable, "").strip().lower() in ("on", "1", "true")
