"""What lists and watches of an API server return."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from retuned_operator.kube.errors import Unavailable, answered
from retuned_operator.kube.resources import Obj, Resource
from retuned_operator.kube.responses import Stream


class EventType(StrEnum):
    """Type of an event of a watch."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEvent:
    """One event of a watch."""

    type: EventType
    """What happened; a bookmark only has the version up to which all events were sent."""
    body: Obj
    """The object; of a bookmark only its version."""

    @property
    def version(self) -> str:
        """Version to go on from."""
        return str(self.body.get("metadata", {}).get("resourceVersion", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Objects of a kind at one moment, all of them or a part."""

    items: Sequence[Obj]
    """The objects."""
    version: str
    """Version from which a watch goes on."""


class Watch:
    """What happens, as it happens; to be used in a ``with``."""

    def __init__(self, stream: Stream, resource: Resource) -> None:
        self._stream = stream
        self._what = f"watch {resource.plural}"

    def __iter__(self) -> Iterator[WatchEvent]:
        for line in self._stream:
            kind, body = line.get("type"), line.get("object")
            if not isinstance(body, dict) or not isinstance(body.get("metadata", {}), dict):
                raise Unavailable(f"{self._what}: an event without an object")
            if kind == "ERROR":
                code = body.get("code")
                status = code if isinstance(code, int) else 500
                raise answered(self._what, status=status, body=body)
            if kind not in list(EventType):
                raise Unavailable(f"{self._what}: an event of an unknown type")
            yield WatchEvent(type=EventType(kind), body=body)

    def interrupt(self) -> None:
        """End it from another thread."""
        self._stream.interrupt()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
