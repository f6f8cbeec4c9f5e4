"""Watches read from the wire: pieces of any size, and bytes that are no events."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any, cast

import urllib3
from hypothesis import given
from hypothesis import strategies as st

from retuned_operator.kube.errors import ApiError, Unavailable
from retuned_operator.kube.resources import PODS
from retuned_operator.kube.responses import Stream
from retuned_operator.kube.watch import EventType, Watch, WatchEvent


class Pieces:
    """A response that arrives in pieces, and then breaks off or ends."""

    def __init__(self, pieces: Sequence[bytes], *, breaks: bool = False) -> None:
        self._pieces = pieces
        self._breaks = breaks

    def stream(self, *_: object, **__: object) -> Iterator[bytes]:
        yield from self._pieces
        if self._breaks:
            raise urllib3.exceptions.ProtocolError("the connection broke")

    def close(self) -> None: ...


def read(pieces: Sequence[bytes], *, breaks: bool = False) -> tuple[list[WatchEvent], str, str]:
    """Return the events, and code and text of the error that ended them."""
    response = cast(urllib3.BaseHTTPResponse, Pieces(pieces, breaks=breaks))
    found: list[WatchEvent] = []
    try:
        with Watch(Stream(response, "GET /pods"), PODS) as watch:
            for event in watch:
                found.append(event)
    except ApiError as error:
        return found, error.code, str(error)
    return found, "", ""


NAMES = st.text(st.characters(codec="utf-8"), max_size=8)
EVENTS = st.builds(
    lambda kind, name, n: {
        "type": kind,
        "object": {"metadata": {"name": name, "resourceVersion": n}},
    },
    st.sampled_from(sorted(EventType)),
    NAMES,
    st.integers(1, 9).map(str),
)


@given(events=st.lists(EVENTS, max_size=6), data=st.data(), breaks=st.booleans())
def test_events_are_the_same_however_they_are_cut_into_pieces(
    events: list[dict[str, Any]], data: st.DataObject, breaks: bool
) -> None:
    text = b"".join(json.dumps(each, ensure_ascii=False).encode() + b"\n" for each in events)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    edges = [0, *cuts, len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    found, code, _ = read(pieces, breaks=breaks)
    assert [{"type": str(each.type), "object": each.body} for each in found] == events
    assert code == ("api-unavailable" if breaks else "")


_KEYS = st.sampled_from(("type", "object", "metadata", "code", "message", "reason", "details"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(_KEYS, below, max_size=3),
    max_leaves=8,
)


@given(
    lines=st.lists(st.binary(max_size=40) | JSON.map(lambda e: json.dumps(e).encode()), max_size=4)
)
def test_bytes_that_are_no_events_end_the_watch_and_nothing_else(lines: list[bytes]) -> None:
    _, _, text = read([line + b"\n" for line in lines])
    assert not text or text.isprintable()


@given(code=st.integers(100, 599), message=st.text())
def test_an_error_among_the_events_is_the_error_that_it_says(code: int, message: str) -> None:
    body = {"kind": "Status", "code": code, "message": message, "reason": "Expired"}
    line = json.dumps({"type": "ERROR", "object": body}).encode() + b"\n"
    found, told, text = read([line])
    assert found == []
    assert (told == "version-gone") == (code == 410)
    assert text.isprintable()


def test_what_is_nested_too_deep_to_be_read_is_no_event() -> None:
    found, code, _ = read([b'{"type":"ADDED","object":' + b'{"a":' * 100_000 + b"\n"])
    assert (found, code) == ([], Unavailable.code)
