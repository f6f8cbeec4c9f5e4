"""``kubectl retuned inject``: add the sidecar to manifests, without the webhook."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from retuned.errors import UnreadableInput, UsageError
from retuned.files import NotPlain, read_plain
from retuned.strict_yaml import parse, read_text
from retuned.text import say
from retuned_operator.kubectl.manifests import MAX_BYTES, changed
from retuned_operator.manifests.settings import SidecarSettings, sidecar_settings

_STDIN = Path("-")


def inject(
    file: Annotated[
        list[Path], typer.Option("--filename", "-f", help="YAML, or - for stdin; again for more.")
    ],
    image: Annotated[
        str, typer.Option(envvar="RETUNED_SIDECAR_IMAGE", help="Image of the sidecar.")
    ] = "",
    agent_url: Annotated[
        str, typer.Option(envvar="RETUNED_AGENT_URL", help="The operator's agent API, https.")
    ] = "",
    settings: Annotated[
        Path | None, typer.Option(help="YAML with more of the sidecar, named as in the chart.")
    ] = None,
    target: Annotated[str, typer.Option(help="TuningTarget, where no annotation names it.")] = "",
    container: Annotated[
        str, typer.Option(help="Container that serves, where no annotation names it.")
    ] = "",
) -> None:
    """Put the sidecar into the pods of manifests, and print them all.

    What makes no pods, and pods that say no, come out as they came in. Exit 1 where a pod cannot
    take the sidecar; it is printed as it was.
    """
    how = _settings(settings, image=image, agent_url=agent_url)
    troubled = False
    for number, each in enumerate(file):
        where = "stdin" if each == _STDIN else str(each)
        result = changed(_text(each), settings=how, where=where, target=target, container=container)
        if number:
            sys.stdout.write("---\n")
        sys.stdout.write(result.text)
        for workload in result.workloads:
            reason = workload.result.reason
            troubled |= reason is not None and reason.is_trouble
            said = (
                "sidecar put in" if reason is None else f"left as it is: {workload.result.detail}"
            )
            say(f"{where}: {workload.name}: {said}{f' [{reason}]' if reason else ''}")
    sys.stdout.flush()
    raise typer.Exit(int(troubled))


def _settings(file: Path | None, *, image: str, agent_url: str) -> SidecarSettings:
    data: object = {} if file is None else parse(read_text(file), path=file).data
    given = {"image": image, "agentUrl": agent_url}
    if isinstance(data, dict):
        data = data | {name: value for name, value in given.items() if value}
        if not data.get("image") or not data.get("agentUrl"):
            raise UsageError("name the sidecar's --image and the operator's --agent-url")
    return sidecar_settings(data, where="the options" if file is None else str(file))


def _text(file: Path) -> str:
    """Return what is to be changed.

    Raises
    ------
    UnreadableInput
        If it cannot be read, is too large or is not UTF-8.
    """
    where = "stdin" if file == _STDIN else str(file)
    try:
        if file == _STDIN:
            data: bytes | None = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            data = read_plain(file, max_bytes=MAX_BYTES)
    except NotPlain as error:
        text = f"expected a file ({error.strerror})"
        raise UnreadableInput("not-a-file", where=where, message=text) from error
    except OSError as error:
        text = f"cannot be read ({error.strerror})"
        raise UnreadableInput("cannot-open", where=where, message=text) from error
    if data is None or len(data) > MAX_BYTES:
        text = f"larger than {MAX_BYTES // 2**20} MiB"
        raise UnreadableInput("too-large", where=where, message=text)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        text = f"not UTF-8 at byte {error.start}"
        raise UnreadableInput("not-utf-8", where=where, message=text) from None
