"""``retuned attach``: run a server with the runtime in each of its Python processes."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import retuned.runtime.site
from retuned.cli.output import JsonFlag, emit_json, say
from retuned.errors import MissingDependency, RetunedError, TemporaryError, UsageError
from retuned.runtime_client.client import RuntimeSocket
from retuned.runtime_client.connection import told
from retuned.settings import load_settings

_SITE = Path(retuned.runtime.site.__file__).resolve().parent
_LONGEST_SOCKET_BYTES = 107
"""What the kernel takes as a socket's path."""
_DETACH_S = 60.0
"""Longest wait for a process: graphs are put back at a safe point of the server."""
_LONGEST_NAME = len("/4194304-00000000.sock")


def attach(
    command: Annotated[
        list[str] | None, typer.Argument(help="The server's command, after --.")
    ] = None,
    print_env: Annotated[
        bool, typer.Option("--print-env", help="Print what to set, and run nothing.")
    ] = False,
    socket_dir: Annotated[
        Path | None, typer.Option(help="Folder of the control sockets; overrides the setting.")
    ] = None,
    server: Annotated[str, typer.Option(help="Name of the server, for people.")] = "",
    config: Annotated[Path | None, typer.Option(help="YAML or TOML file with settings.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Run a server with Retuned in it, without a change to its code.

    Every Python process that inherits the variables joins once it imports PyTorch, Triton, vLLM or
    SGLang; others are left alone. RETUNED_RUNTIME=off switches all of it off. Interpreters started
    with -S, -E or -I are not reached. `eval "$(retuned attach --print-env)"` sets the same for
    what is started later.
    """
    if not command and not print_env and not as_json:
        raise UsageError("name the server's command after `--`, or say --print-env")
    if command and (print_env or as_json):
        flag = "--print-env" if print_env else "--json"
        raise UsageError(f"{flag} runs nothing: leave it out, or leave the command out")
    folder = load_settings(config, {"socket_dir": socket_dir}).sockets.absolute()
    if len(os.fsencode(folder)) + _LONGEST_NAME > _LONGEST_SOCKET_BYTES:
        raise UsageError(f"{folder} is too long for sockets; name a shorter one by --socket-dir")
    wanted = variables(folder, server=server)
    if command:
        _become(command, wanted)
    elif as_json:
        emit_json({"variables": wanted})
    else:
        sys.stdout.write(exports(wanted))


def detach(
    socket_dir: Annotated[
        Path | None, typer.Option(help="Folder of the control sockets; overrides the setting.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML or TOML file with settings.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Take Retuned out of every attached process; its server goes on with its own kernels.

    Swaps and tables end without a restart. Tuned-config files stay as they are: `retuned tuned
    restore` writes them back. A process joins again when it is started again.
    """
    folder = load_settings(config, {"socket_dir": socket_dir}).sockets
    rows, problems = [], []
    for path in RuntimeSocket(folder).processes():
        said = told(path, {"op": "detach"}, timeout_s=_DETACH_S)
        if isinstance(said, RetunedError):
            problems.append(f"{path.name}: {said}")
        elif said is not None:
            rows.append(_detached(path, said))
    if as_json:
        emit_json({"processes": rows, "problems": problems})
    for row in rows if not as_json else ():
        left = "" if row["original"] else "; some swaps are still in force"
        say(f"retuned: {row['process']} is detached, {row['slots']} slots are original{left}")
    if problems:
        raise TemporaryError("; ".join(problems), delay_s=1.0)
    if not rows:
        raise MissingDependency(f"{folder}: no process listens, so none is detached")


def _detached(path: Path, answer: Mapping[str, Any]) -> dict[str, Any]:
    slots, tables = answer.get("slots", ()), answer.get("tables", ())
    active = [each for each in slots if each.get("active")]
    return {
        "process": path.name.removesuffix(".sock"),
        "slots": len(slots) - len(active),
        "original": not active and not tables,
    }


def variables(socket_dir: Path, *, server: str = "") -> dict[str, str]:
    """Return what the environment of a server has to have beside what it has.

    Examples
    --------
    >>> sorted(variables(Path("/run/retuned"), server="chat"))
    ['PYTHONPATH', 'RETUNED_SERVER', 'RETUNED_SOCKET_DIR']
    """
    found = {"PYTHONPATH": str(_SITE), "RETUNED_SOCKET_DIR": str(socket_dir)}
    return found | ({"RETUNED_SERVER": server} if server else {})


def exports(wanted: Mapping[str, str]) -> str:
    """Return lines for a shell; a ``PYTHONPATH`` that is set there already is kept behind ours.

    Examples
    --------
    >>> print(exports({"RETUNED_SERVER": "a chat", "PYTHONPATH": "/site"}), end="")
    export RETUNED_SERVER='a chat'
    export PYTHONPATH=/site"${PYTHONPATH:+:$PYTHONPATH}"
    """
    lines = []
    for name, value in wanted.items():
        kept = '"${PYTHONPATH:+:$PYTHONPATH}"' if name == "PYTHONPATH" else ""
        lines.append(f"export {name}={shlex.quote(value)}{kept}\n")
    return "".join(lines)


def _become(command: list[str], wanted: Mapping[str, str]) -> None:
    """Run the command in this process's place: signals and exit status are its own.

    Raises
    ------
    MissingDependency
        If the command does not exist, or the user may not run it.
    """
    there = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = [wanted["PYTHONPATH"], *(each for each in there if each not in ("", str(_SITE)))]
    environment = {**os.environ, **wanted, "PYTHONPATH": os.pathsep.join(path)}
    say(f"retuned: control sockets in {wanted['RETUNED_SOCKET_DIR']}")
    try:
        os.execvpe(command[0], command, environment)
    except (OSError, ValueError) as error:
        why = (
            getattr(error, "strerror", None) or error
        )  # the error's own path is the last one tried
        raise MissingDependency(f"{command[0]}: cannot be run ({why})") from error
