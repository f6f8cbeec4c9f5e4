"""Results on their way through a container's log: all of them, of this pod, or none."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.expect import raises_naming

from retuned.errors import Refused, UnreadableInput
from retuned.experiment import log_transport
from retuned.experiment.log_transport import (
    FINDINGS,
    MAX_FILES,
    MAX_LOG_BYTES,
    MAX_PACKED_BYTES,
    MAX_UNPACKED_BYTES,
    Bundle,
    Packed,
    Sender,
    lines,
    names_of,
    pack,
    read,
    refusal_line,
)

SENDER = Sender(experiment="uid-1", job="verify-1", pod="pod-1")
ONE = "evidence/" + "a" * 64 + ".json"
CODE = "artifacts/" + "b" * 64 + "/kernel.so"
FILES = {FINDINGS: b'{"done":true}\n', ONE: b"{}" * 9_000, CODE: random.Random(1).randbytes(40_000)}
_HEX = st.text("0123456789abcdef", min_size=64, max_size=64)
NAMES = st.one_of(
    st.just(FINDINGS),
    _HEX.map(lambda digest: f"evidence/{digest}.json"),
    st.tuples(_HEX, st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,20}", fullmatch=True)).map(
        lambda parts: f"artifacts/{parts[0]}/{parts[1]}"
    ),
)


def told(
    files: Mapping[str, bytes] = FILES, *, sender: Sender = SENDER, **left: int
) -> list[bytes]:
    return list(lines([pack(*each) for each in files.items()], sender=sender, left_out=left))


def refused(log: bytes, *, sender: Sender = SENDER) -> str:
    with pytest.raises(UnreadableInput) as caught:
        read(log, sender=sender)
    return caught.value.code


def framed(whole: bytes, **head: Any) -> bytes:
    """Return a log as somebody would write it who knows how, and means harm."""
    about: dict[str, Any] = {
        "version": 1,
        "experiment": SENDER.experiment,
        "job": SENDER.job,
        "pod": SENDER.pod,
        "files": 1,
        "packed_bytes": len(whole),
        "sha256": hashlib.sha256(whole).hexdigest(),
        "left_out": {},
        **head,
    }
    text = f"retuned-results begin {json.dumps(about)}\nretuned-results part 0 "
    end = f"\nretuned-results end {about['sha256']}\n"
    return text.encode() + base64.b64encode(whole) + end.encode()


def one_file(name: str, data: bytes, **about: Any) -> bytes:
    packed = zlib.compress(data)
    head = {"name": name, "size": len(data), "packed": len(packed), **about}
    return json.dumps(head).encode() + b"\n" + packed


@settings(deadline=None)
@given(st.dictionaries(NAMES, st.binary(max_size=30_000), max_size=6))
def test_what_was_told_is_read_again_byte_by_byte(files: dict[str, bytes]) -> None:
    assert read(b"".join(told(files)), sender=SENDER) == Bundle(files=files)


def test_no_line_is_long_enough_to_be_cut_by_a_runtime() -> None:
    assert max(map(len, told())) < 16_384
    assert len(told()) > 3


def test_what_was_left_out_is_said() -> None:
    assert read(b"".join(told(evidence=7)), sender=SENDER).left_out == {"evidence": 7}


def test_lines_before_the_beginning_and_after_the_end_are_left_aside() -> None:
    log = b"a warning\n\n" + b"".join(told()) + b"retuned says good bye\n"
    assert dict(read(log, sender=SENDER).files) == FILES


@settings(deadline=None)
@given(st.integers(min_value=0))
def test_a_log_that_was_cut_anywhere_is_refused_and_never_read_in_part(at: int) -> None:
    log = b"".join(told())
    cut = log[: at % (len(log) - 1)]  # without the last line's end it is whole all the same
    assert refused(cut) in {
        "results-absent", "results-truncated", "results-altered", "results-malformed",
        "results-mixed",
    }  # fmt: skip


@settings(deadline=None)
@given(st.integers(min_value=0), st.integers(min_value=1, max_value=255))
def test_a_log_with_a_wrong_byte_is_refused_or_says_the_same(at: int, change: int) -> None:
    log = bytearray(b"".join(told()))
    log[at % len(log)] ^= change
    try:
        found = read(bytes(log), sender=SENDER)
    except UnreadableInput:
        return
    assert dict(found.files) == FILES  # the byte was one that means nothing, such as a size


Damage = Callable[[list[bytes]], list[bytes]]
DAMAGES: list[tuple[Damage, str]] = [
    (lambda log: [], "absent"),
    (lambda log: log[:-1], "truncated"),
    (lambda log: [*log[:3], *log[4:]], "mixed"),
    (lambda log: [*log[:3], log[2], *log[3:]], "mixed"),
    (lambda log: [log[0], log[2], log[1], *log[3:]], "mixed"),
    (lambda log: [*log[:3], b"somebody else\n", *log[3:]], "mixed"),
    (lambda log: log[1:], "mixed"),
    (lambda log: [*log, *log], "twice"),
    (lambda log: [log[0], *log], "twice"),
    (lambda log: [*log[:-2], log[-1]], "truncated"),
    (lambda log: [*log[:-1], b"retuned-results end " + b"0" * 64], "altered"),
    (lambda log: [*log[:2], b"retuned-results what 3 AAAA\n", *log[2:]], "malformed"),
    (lambda log: [*log[:2], b"retuned-results part 1 ?\n", *log[3:]], "malformed"),
    (lambda log: [refusal_line("results-too-large", SENDER)], "not-told"),
    (lambda log: [b"unable to retrieve container logs for containerd://1234"], "absent"),
]


@pytest.mark.parametrize(("damage", "code"), DAMAGES)
def test_a_log_that_is_not_whole_is_refused_by_its_code(damage: Damage, code: str) -> None:
    assert refused(b"".join(damage(told()))) == f"results-{code}"


@pytest.mark.parametrize("part", ["experiment", "job", "pod"])
def test_results_of_another_pod_are_refused(part: str) -> None:
    other = {"experiment": "uid-1", "job": "verify-1", "pod": "pod-1", part: "another"}
    assert refused(b"".join(told(sender=Sender(**other)))) == "results-of-another"
    assert refused(refusal_line("x", Sender(**other))) == "results-of-another"


BAD_NAMES = [
    "../" + FINDINGS,
    "/etc/passwd",
    "evidence/../" + FINDINGS,
    "evidence/" + "a" * 63 + ".json",
    "artifacts/" + "b" * 64 + "/../../x",
    "artifacts/" + "b" * 64 + "/.hidden",
    "artifacts/" + "b" * 64 + "/sub/kernel.so",
    FINDINGS + "\n",
    "",
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_leads_elsewhere_is_refused_by_who_tells_and_by_who_reads(name: str) -> None:
    assert refused(framed(one_file(name, b"x"))) == "results-malformed"
    assert names_of([name]) == ()
    with raises_naming(ValueError, repr(name)[:60]):
        pack(name, b"x")


def test_a_file_that_becomes_larger_than_was_said_is_not_unpacked_further() -> None:
    bomb = one_file(FINDINGS, b"\0" * (32 << 20), size=10)
    assert len(bomb) < 100_000
    assert refused(framed(bomb)) == "results-altered"


def test_files_that_are_too_large_together_are_refused_before_they_are_unpacked() -> None:
    huge = one_file(FINDINGS, b"x", size=MAX_UNPACKED_BYTES + 1)
    assert refused(framed(huge)) == "results-too-large"
    half = MAX_UNPACKED_BYTES // 2 + 1
    both = one_file(ONE, b"\0" * half) + one_file(FINDINGS, b"\0" * half)
    assert refused(framed(both, files=2)) == "results-too-large"


def test_too_many_files_are_refused() -> None:
    names = [f"evidence/{n:064x}.json" for n in range(MAX_FILES + 1)]
    whole = b"".join(one_file(name, b"") for name in names)
    assert refused(framed(whole, files=len(names))) == "results-too-large"


HEADS: list[tuple[dict[str, Any], str]] = [
    ({"version": 2}, "unknown-version"),
    ({"version": None}, "unknown-version"),
    ({"packed_bytes": MAX_PACKED_BYTES + 1}, "too-large"),
    ({"packed_bytes": -1}, "malformed"),
    ({"packed_bytes": True}, "malformed"),
    ({"packed_bytes": "9"}, "malformed"),
    ({"packed_bytes": 1e9}, "malformed"),
    ({"packed_bytes": 3}, "truncated"),
    ({"files": 2}, "altered"),
    ({"left_out": []}, "malformed"),
    ({"left_out": {"findings": "many"}}, "malformed"),
    ({"pad": "x" * 5_000}, "malformed"),
]


@pytest.mark.parametrize(("head", "code"), HEADS, ids=lambda value: str(value)[:40])
def test_a_header_that_is_not_as_it_should_be_is_refused(head: dict[str, Any], code: str) -> None:
    assert refused(framed(one_file(FINDINGS, b"x"), **head)) == f"results-{code}"


ABOUTS: list[tuple[bytes, str]] = [
    (one_file(FINDINGS, b"x") * 2, "twice"),
    (one_file(FINDINGS, b"x", packed=3), "altered"),
    (one_file(FINDINGS, b"x", packed=1 << 20), "altered"),
    (one_file(FINDINGS, b"x", size=0), "altered"),
    (b'{"name":"findings.jsonl","size":1,"packed":4}\nabcd', "malformed"),
    (b"[1]\n", "malformed"),
    (b"no line", "malformed"),
    (b'{"name":["findings.jsonl"],"size":1,"packed":1}\nx', "malformed"),
]


@pytest.mark.parametrize(("whole", "code"), ABOUTS, ids=lambda value: str(value)[:20])
def test_content_that_is_not_as_it_should_be_is_refused(whole: bytes, code: str) -> None:
    assert refused(framed(whole)) == f"results-{code}"


def test_a_log_without_an_end_in_sight_is_not_looked_through() -> None:
    assert refused(b"x" * (MAX_LOG_BYTES + 1)) == "results-too-large"


@settings(deadline=None)
@given(st.binary(max_size=2_000))
def test_nonsense_in_a_frame_is_refused(whole: bytes) -> None:
    if whole:
        assert refused(framed(whole)).startswith("results-")


def test_more_than_anybody_reads_is_not_told() -> None:
    too_many = [Packed(name=ONE, size=1, data=b"x")] * (MAX_FILES + 1)
    too_large = [Packed(name=ONE, size=MAX_UNPACKED_BYTES + 1, data=b"x")]
    too_dense = [Packed(name=ONE, size=1, data=b"x" * MAX_PACKED_BYTES)]
    for packed in (too_many, too_large, too_dense):
        with pytest.raises(Refused) as caught:
            list(lines(packed, sender=SENDER))
        assert caught.value.code == "results-too-large"


def test_the_largest_bundle_fits_into_one_log_of_a_kubelet() -> None:
    room = MAX_PACKED_BYTES - 200
    packed = Packed(name=ONE, size=1, data=b"\xff" * room)
    log = b"".join(lines([packed], sender=SENDER))
    stamps = log.count(b"\n") * len("2026-11-22T14:35:38.123456789Z stdout F ")
    assert len(log) <= MAX_LOG_BYTES
    assert len(log) + stamps < 10 << 20
    assert log_transport.MAX_PACKED_BYTES < 8 << 20
