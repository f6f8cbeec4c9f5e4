"""Completion for kubectl, which runs ``kubectl_complete-retuned`` with the words typed so far.

It answers with one proposal a line and a last line ``:4``, which tells the shell to offer no files.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import typer

from retuned.errors import RetunedError

_NO_FILES, _FILES = ":4", ":0"
_MAX_SHOWN = 200
_ABOUT_PROPOSALS = ("show", "approve", "reject", "abort", "rollback")
_FILE_OPTIONS = ("-f", "--filename", "--kubeconfig", "--settings")


def run_completion(words: Sequence[str]) -> None:
    """Print the completions of the last word."""
    from retuned_operator.kubectl.commands import app

    found, ending = completed(typer.main.get_command(app), words, proposals=_proposals)
    sys.stdout.write("".join(f"{each}\n" for each in (*found, ending)))


def completed(
    command: Any,  # noqa: ANN401 - a command or group of the library below
    words: Sequence[str],
    *,
    proposals: Callable[[], Iterable[str]],
) -> tuple[list[str], str]:
    """Return the completions of the last word, and how the shell continues.

    Parameters
    ----------
    command
        The program.
    words
        What is typed; the last one is not finished and may be empty.
    proposals
        Asks the cluster for names; only called where a name is wanted.
    """
    *done, last = words or [""]
    name = ""
    for word in done:
        inner = getattr(command, "commands", {}).get(word)
        if inner is not None:
            command, name = inner, word
    before = done[-1] if done else ""
    if before in _FILE_OPTIONS or (name == "check" and not last.startswith("-")):
        return [], _FILES
    option = next((p for p in command.params if before in p.opts), None)
    if option is not None and not getattr(option, "is_flag", False):
        offered = option.shell_complete(typer.Context(command), last)
        return _beginning([str(each.value) for each in offered], last), _NO_FILES
    if last.startswith("-"):
        names = [each for p in command.params for each in p.opts if each.startswith("-")]
        return _beginning([*names, "--help"], last), _NO_FILES
    if getattr(command, "commands", None):
        return _beginning(list(command.commands), last), _NO_FILES
    if name in _ABOUT_PROPOSALS:
        return _beginning(proposals(), last), _NO_FILES
    return [], _NO_FILES


def _beginning(names: Iterable[str], typed: str) -> list[str]:
    return sorted({each for each in names if each.startswith(typed)})[:_MAX_SHOWN]


def _proposals() -> list[str]:
    """Return the names of open proposals; none if the cluster does not answer in time."""
    from retuned_operator.kube.resources import PROPOSALS
    from retuned_operator.kube.transport import Timeouts
    from retuned_operator.kubectl.connection import open_desk
    from retuned_operator.schema import SwapProposal

    limits = Timeouts(connect_s=2.0, answer_s=3.0)
    try:
        desk = open_desk(
            namespace="", everywhere=False, context="", kubeconfig=None, timeouts=limits
        )
        known, _ = desk.all(PROPOSALS, SwapProposal)
    except RetunedError:  # no completion is a sufficient error
        return []
    return [each.metadata.name for each in known if not each.status.phase.is_terminal]
