"""Names of services are answered as a cluster's DNS does; needs no cluster."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from ipaddress import IPv4Address

import pytest
from tests.cluster.names import Names

A, AAAA = 1, 28
KNOWN = IPv4Address("198.18.128.7")


def question(name: str, kind: int = A) -> bytes:
    labels = b"".join(bytes([len(each)]) + each.encode() for each in name.split("."))
    return struct.pack("!6H", 77, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!2H", kind, 1)


class World:
    """An API server that may be away."""

    away = False

    def find(self, namespace: str, name: str) -> IPv4Address | None:
        if self.away:
            raise ConnectionRefusedError
        return KNOWN if (namespace, name) == ("retuned", "agent") else None


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def names(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    monkeypatch.setattr("socket.socket.bind", lambda *_: None)  # the port is root's
    made = Names("127.0.0.1", world.find)
    yield made
    made._socket.close()


def told(answer: bytes) -> tuple[int, IPv4Address | None]:
    """Return code and address."""
    id_, flags, questions, answers, *_ = struct.unpack_from("!6H", answer)
    assert (id_, questions) == (77, 1)
    assert flags & 0x8000, "an answer"
    return flags & 0xF, IPv4Address(answer[-4:]) if answers else None


def test_a_service_is_found_by_its_full_name_in_any_letters(names: Names) -> None:
    assert told(names.answer(question("agent.retuned.svc.cluster.local"))) == (0, KNOWN)
    assert told(names.answer(question("Agent.Retuned.SVC.cluster.local"))) == (0, KNOWN)


def test_a_name_that_is_there_without_such_an_address_is_no_missing_name(names: Names) -> None:
    assert told(names.answer(question("agent.retuned.svc.cluster.local", AAAA))) == (0, None)


@pytest.mark.parametrize(
    "name",
    ["other.retuned.svc.cluster.local", "agent.retuned.svc.chat.svc.cluster.local", "example.org"],
)
def test_what_is_not_there_is_said_not_to_be(names: Names, name: str) -> None:
    assert told(names.answer(question(name))) == (3, None)


def test_with_the_api_server_away_what_was_known_stays_and_the_rest_is_a_failure(
    names: Names, world: World
) -> None:
    names.answer(question("agent.retuned.svc.cluster.local"))
    world.away = True
    assert told(names.answer(question("agent.retuned.svc.cluster.local"))) == (0, KNOWN)
    assert told(names.answer(question("other.retuned.svc.cluster.local"))) == (2, None)


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"\0" * 12,
        question("a.b")[:-6],
        question("a.b")[:-1],
        question("a")[:12] + b"\xc0\x0c\0\1\0\1",
    ],
)
def test_what_is_no_question_is_refused(names: Names, broken: bytes) -> None:
    with pytest.raises((ValueError, struct.error)):
        names.answer(broken)
