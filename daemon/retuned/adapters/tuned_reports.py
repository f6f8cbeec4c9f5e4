"""What the processes of a server say of tuned-config files, read as a stranger's answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from retuned.adapters.runtime_link import RETRY_S
from retuned.configured.records import FORMATS, Format
from retuned.contract import Digest
from retuned.errors import TemporaryError
from retuned.ports import SlotState
from retuned.stages.watch import WatchSample

_Text = Annotated[str, Field(max_length=2000)]


class FileReport(BaseModel):
    """How one kernel's file stands in one process; what a newer runtime adds is left out."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    definition: _Text
    order: _Text
    artifact: Digest | None
    epoch: int = Field(ge=0)
    state: Literal["engaged", "needs-restart", "lost"]
    reason: _Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process of a server that takes orders on files."""

    path: Path
    """Its socket."""
    formats: frozenset[Format]
    """Files that it reads."""
    prepared: frozenset[str]
    """Orders that it could carry out at once."""
    entries: Mapping[str, FileReport]
    """By kernel, what the last order left."""


def process_of(path: Path, said: Mapping[str, Any]) -> Process:
    """Read what a process says.

    Raises
    ------
    TemporaryError
        If it is nonsense: a server to ask again.
    """
    try:
        entries = [FileReport.model_validate(each) for each in said.get("files", ())]
        servers = said["servers"]
        return Process(
            path=path,
            formats=frozenset(each for each in FORMATS if servers.get(each)),
            prepared=frozenset(str(each) for each in said["prepared"]),
            entries={entry.definition: entry for entry in entries},
        )
    except (KeyError, TypeError, AttributeError, ValidationError) as error:
        first = str(error).splitlines()[0][:200]
        message = f"{path}: what the runtime says of files cannot be read: {first}"
        raise TemporaryError(message, delay_s=RETRY_S) from error


def entry_state(definition: str, process: Process, _name: str) -> SlotState:
    """Return a kernel that a file configures as a slot; one without an order is at epoch 0."""
    entry = process.entries.get(definition)
    return SlotState(
        definition=definition,
        active=entry.artifact if entry is not None else None,
        epoch=entry.epoch if entry is not None else 0,
        launches={},
        tripped=_tripped(entry),
        counted=False,
    )


def entry_sample(definition: str, process: Process, name: str) -> WatchSample:
    """Return what is proven of a kernel that a file configures, in one process."""
    entry = process.entries.get(definition)
    return WatchSample(
        definition=definition,
        artifact=entry.artifact if entry is not None else None,
        epoch=entry.epoch if entry is not None else 0,
        swapped_launches=0,
        fallback_launches=0,
        shadow_checks=0,
        shadow_mismatches=0,
        shadow_nonfinite=0,
        worst_ratio=0.0,
        errors=0,
        tripped=_tripped(entry),
        members=(name,),
        configured="needs-restart" if entry and entry.state == "needs-restart" else "engaged",
    )


def merged(samples: Sequence[WatchSample]) -> WatchSample:
    """Put processes together: one that is behind, or that lost the row, is what counts."""
    epoch = max(sample.epoch for sample in samples)
    newest = [sample for sample in samples if sample.epoch == epoch]
    behind = tuple(name for s in samples if s.epoch != epoch for name in s.members)
    worst = next((sample for sample in newest if sample.tripped), newest[0])
    waits = any(sample.configured == "needs-restart" for sample in newest)
    return worst.model_copy(
        update={
            "processes": len(samples),
            "idle_processes": len(behind),
            "members": tuple(sorted(name for s in samples for name in s.members)),
            "idle_members": behind,
            "configured": "needs-restart" if waits else "engaged",
        }
    )


def _tripped(entry: FileReport | None) -> str:
    """Return why a row is no longer what the server picks; empty while it is."""
    if entry is None or entry.artifact is None or entry.state != "lost":
        return ""
    return f"file-{entry.reason or 'lost'}"
