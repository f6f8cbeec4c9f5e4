"""The pure parts: differences, the roofline, tokens, addresses, and what was said of a peer."""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta
from pathlib import Path
from xml.etree import ElementTree

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import PlainTextResponse
from tests.expect import raises_code, raises_naming
from tests.review.conftest import NOON, SOURCE, solution

from retuned.errors import Refused, TemporaryError, UsageError
from retuned.review.differences import MOST_COLUMNS, MOST_LINES, MOST_SHOWN, difference
from retuned.review.local_users import uid_of_peer
from retuned.review.ports import RequestInfo
from retuned.review.requests import LIFE, FormToken, fault_of, sign
from retuned.review.roofline import RooflinePoint, roofline
from retuned.review.server import PageServer, place_of
from retuned.review.settings import Site
from retuned.standalone.review_page import LocalAuthenticator
from retuned.store.approvals import identity_of_uid

KEY = b"k" * 32
SHOWN = FormToken(session="s" * 43, user="ada", key="p", artifact="sha256:aa", policy="sha256:bb")


def test_parameters_that_change_stand_first() -> None:
    found = difference(solution("a", num_warps=4), solution("b", num_warps=8))
    first = found.values[0]
    assert (first.name, first.before, first.after) == ("num_warps", "4", "8")
    assert found.files == ()
    assert found.unchanged == ("rmsnorm.py",)


def test_a_line_that_changes_has_its_numbers_and_equal_lines_around() -> None:
    after = SOURCE.replace("1e-6", "1e-5")
    (file,) = difference(solution("a"), solution("b", source=after)).files
    assert (file.added, file.removed) == (1, 1)
    changed = [mark for mark in file.marks if mark.sort in ("new", "gone")]
    assert [(m.sort, m.old, m.new) for m in changed] == [("gone", 11, None), ("new", None, 11)]
    assert sum(mark.sort == "same" for mark in file.marks) == 5


def test_without_what_runs_now_all_of_the_variant_is_new() -> None:
    found = difference(None, solution("b"))
    assert found.only_after
    assert all(mark.sort == "new" for mark in found.files[0].marks)


def test_a_source_of_many_lines_and_one_of_long_lines_are_cut() -> None:
    many = "\n".join(str(n) for n in range(MOST_LINES + 10))
    (file,) = difference(solution("a"), solution("b", source=many)).files
    assert file.cut
    assert len(file.marks) == MOST_SHOWN
    (file,) = difference(solution("a", source=""), solution("b", source="y" * 10_000)).files
    assert len(file.marks[0].text) == MOST_COLUMNS


@given(st.text(max_size=400), st.text(max_size=400))
def test_a_difference_tells_every_line_of_both(before: str, after: str) -> None:
    found = difference(solution("a", source=before), solution("b", source=after))
    for file in found.files:
        assert file.added == sum(mark.sort == "new" for mark in file.marks)
        assert file.removed == sum(mark.sort == "gone" for mark in file.marks)


SPEEDS = st.floats(1e-3, 1e7)


@given(
    st.lists(
        st.builds(
            RooflinePoint,
            label=st.text(max_size=12),
            intensity=SPEEDS,
            before_gflops=SPEEDS,
            after_gflops=SPEEDS,
        ),
        max_size=6,
    ),
    SPEEDS,
    SPEEDS,
    st.sampled_from([358.0, 920.0]),
)
def test_a_roofline_is_well_formed_and_stays_inside_its_picture(
    spots: list[RooflinePoint], gflops: float, gbytes: float, width: float
) -> None:
    text = roofline(spots, gflops=gflops, gbytes_per_s=gbytes, title="t", desc="d", width=width)
    root = ElementTree.fromstring(text)
    high = float(root.attrib["viewBox"].split()[3])
    for circle in root.iter("{http://www.w3.org/2000/svg}circle"):
        assert 0 <= float(circle.attrib["cx"]) <= width
        assert 0 <= float(circle.attrib["cy"]) <= high
    for line in root.iter("{http://www.w3.org/2000/svg}polyline"):
        for place in line.attrib["points"].split():
            x, y = map(float, place.split(","))
            assert 0 <= x <= width
            assert 0 <= y <= high


def test_a_roofline_refuses_what_is_no_number() -> None:
    with pytest.raises(ValueError, match="roof"):
        roofline([], gflops=float("nan"), gbytes_per_s=1.0, title="t", desc="d")


def test_a_token_is_good_for_its_life_and_no_longer() -> None:
    token = sign(SHOWN, key=KEY, now=NOON)
    assert fault_of(token, SHOWN, key=KEY, now=NOON + LIFE - timedelta(seconds=1)) is None
    assert fault_of(token, SHOWN, key=KEY, now=NOON + LIFE) == "too-old"
    assert fault_of(token, SHOWN, key=KEY, now=NOON - timedelta(hours=1)) == "too-old"


@pytest.mark.parametrize("name", ["session", "user", "key", "artifact", "policy"])
def test_a_token_is_for_nothing_else(name: str) -> None:
    from dataclasses import replace

    other = replace(SHOWN, **{name: "else"})
    token = sign(SHOWN, key=KEY, now=NOON)
    assert fault_of(token, other, key=KEY, now=NOON) == "forged"
    assert fault_of(token, SHOWN, key=b"x" * 32, now=NOON) == "forged"


@given(st.text(max_size=200))
def test_whatever_is_sent_as_a_token_is_answered(text: str) -> None:
    assert fault_of(text, SHOWN, key=KEY, now=NOON) in ("no-token", "forged", "too-old")


def test_parts_of_a_token_do_not_run_into_each_other() -> None:
    one = FormToken(session="a", user="bc", key="p", artifact="x", policy="")
    two = FormToken(session="ab", user="c", key="p", artifact="x", policy="")
    assert sign(one, key=KEY, now=NOON) != sign(two, key=KEY, now=NOON)


def test_a_short_key_is_refused() -> None:
    with raises_naming(UsageError, "32 bytes"):
        Site(hosts=frozenset({"x"}), key=b"short")


@pytest.mark.parametrize(
    "text", ["0.0.0.0:80", "10.0.0.1:80", "[::]:80", "chat:80", "127.0.0.1", "127.0.0.1:99999", ""]
)
def test_an_address_that_others_reach_is_refused(text: str) -> None:
    with raises_naming(UsageError, "review"):
        place_of(text)


def test_a_port_that_is_taken_is_found_before_anything_begins() -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    with taken, raises_naming(TemporaryError, str(taken.getsockname()[1])):
        PageServer("127.0.0.1", taken.getsockname()[1])


def test_no_answer_waits_for_its_head_to_be_acknowledged() -> None:
    server = PageServer("127.0.0.1", 0)
    server.start(PlainTextResponse("x" * 5_000))
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=60.0) as http:

        def took_s() -> float:
            began_s = time.perf_counter()
            assert len(http.get("/").content) == 5_000
            return time.perf_counter() - began_s

        for _ in range(20):  # a new connection's first answers are acknowledged at once
            took_s()
        quick = any(took_s() < 0.030 for _ in range(1_000))
    server.stop()
    assert quick, "held back, each would take 40 ms and more; on a busy machine most do"


def test_the_kernel_says_who_opened_a_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, theirs = server.accept()
        with client, accepted:
            assert uid_of_peer(theirs, server.getsockname()) == os.getuid()
            assert uid_of_peer((theirs[0], 1), server.getsockname()) is None
        assert uid_of_peer(("10.0.0.1", 5), ("10.0.0.2", 6)) is None
        assert uid_of_peer(("nonsense", 5), ("127.0.0.1", 6)) is None


HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"


def row(local: str, remote: str, state: str, uid: int) -> str:
    return f"   0: {local} {remote} {state} 00000000:00000000 00:00000000 00000000 {uid} 0 1\n"


def test_what_is_not_certain_is_nobody(tmp_path: Path) -> None:
    ours, theirs = ("127.0.0.1", 8080), ("127.0.0.1", 40_000)
    there = ("0100007F:9C40", "0100007F:1F90")
    tcp = tmp_path / "tcp"
    tcp.write_text(HEAD + row(*there, "01", 1000))
    assert uid_of_peer(theirs, ours, proc=tmp_path) == 1000
    tcp.write_text(HEAD + row(*there, "01", 1000) + row(*there, "01", 1001))
    assert uid_of_peer(theirs, ours, proc=tmp_path) is None, "two say so"
    tcp.write_text(HEAD + row(*there, "0A", 1000))
    assert uid_of_peer(theirs, ours, proc=tmp_path) is None, "it only listens"
    tcp.write_text(HEAD + row(there[1], there[0], "01", 1000))
    assert uid_of_peer(theirs, ours, proc=tmp_path) is None, "that is our own end"
    tcp.unlink()
    assert uid_of_peer(theirs, ours, proc=tmp_path) is None


def test_the_door_of_a_machine_is_the_user_at_the_other_end() -> None:
    visit = RequestInfo(headers={}, client=("127.0.0.1", 1), server=("127.0.0.1", 2))
    who = LocalAuthenticator({f"user:{identity_of_uid(0, {}).user}": "sre"}, uid=lambda *_: 0).who(
        visit
    )
    assert who.user == "root"
    assert "sre" in who.groups
    with raises_code(Refused, "not-known") as refusal:
        LocalAuthenticator({}, uid=lambda *_: None).who(visit)
    assert refusal.value.code == "not-known"


def test_a_user_without_a_name_is_still_somebody() -> None:
    assert identity_of_uid(4_000_000_000, {}).user == "uid:4000000000"
