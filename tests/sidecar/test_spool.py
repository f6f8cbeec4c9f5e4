"""Reports wait on disk, bounded; the least important goes first, and nothing goes silently."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.expect import raises_naming
from tests.sidecar.sidecar_world import POD, TARGET, PodWorld

from retuned.api.agent import DriftPost, OrderDone, Outcome, ProfileReport
from retuned.errors import Refused, TemporaryError
from retuned.sidecar.reports import flush
from retuned.sidecar.spool import Kept, Spool
from retuned.stages.drift import DriftAction, DriftReport
from retuned.stages.profile import Signature, SignatureStat, WorkloadProfile

AT = datetime(2026, 1, 5, 12, tzinfo=UTC)


def profile(number: int, *, signatures: int = 1) -> ProfileReport:
    stats = tuple(
        SignatureStat(
            signature=Signature(kernel=f"kernel_{n}", dims=((16, 64),), dtypes=("bfloat16",)),
            launches=10,
            gpu_time_ns=1_000,
            median_ns=100,
        )
        for n in range(signatures)
    )
    window = WorkloadProfile(window_start_ns=number, window_ns=10, observed_ns=10, stats=stats)
    return ProfileReport(pod=POD, target=TARGET, id=f"w{number}", profile=window)


def drift(number: int) -> DriftPost:
    report = DriftReport(
        detected=True,
        action=DriftAction.RETUNE,
        reasons=(),
        distance=0.5,
        window_start_ns=number,
        sentence="traffic changed",
    )
    return DriftPost(pod=POD, target=TARGET, id=f"w{number}", report=report)


def done(number: int) -> OrderDone:
    return OrderDone(
        pod=POD,
        target=TARGET,
        order=f"o{number}",
        proposal="p",
        definition="gemm",
        epoch=number + 1,
        outcome=Outcome.DONE,
        at=AT,
    )


def add(spool: Spool, report: Kept) -> None:
    spool.add(report, key=report.order if isinstance(report, OrderDone) else report.id)


def reports(spool: Spool) -> list[Kept]:
    return [each.report for each in spool.waiting()]


def test_what_waits_is_there_after_a_restart_and_told_in_order(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", max_bytes=1 << 20)
    for report in (profile(1), drift(1), done(1), profile(2), done(2)):
        add(spool, report)
    again = Spool(tmp_path / "spool", max_bytes=1 << 20)
    assert reports(again) == [done(1), done(2), drift(1), profile(1), profile(2)]


def test_the_same_report_waits_once(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", max_bytes=1 << 20)
    for _ in range(5):
        add(spool, profile(1))
        spool = Spool(tmp_path / "spool", max_bytes=1 << 20)
    assert reports(spool) == [profile(1)]


@given(kinds=st.lists(st.sampled_from("pdo"), min_size=1, max_size=60))
@settings(max_examples=30, deadline=None)
def test_a_full_spool_keeps_its_bound_and_loses_windows_first(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[str]
) -> None:
    limit = 6_000
    spool = Spool(tmp_path_factory.mktemp("spool"), max_bytes=limit)
    make: dict[str, Callable[[int], Kept]] = {"p": profile, "d": drift, "o": done}
    for number, kind in enumerate(kinds):
        add(spool, make[kind](number))
        assert spool.size_bytes <= limit
    kept = reports(spool)
    assert len(kept) + spool.lost == len(kinds), "nothing goes silently"
    lost = {kind: kinds.count(kind) for kind in "pdo"}
    for report in kept:
        lost[{ProfileReport: "p", DriftPost: "d", OrderDone: "o"}[type(report)]] -= 1
    if lost["o"]:
        assert not [each for each in kept if not isinstance(each, OrderDone)]
    if lost["d"]:
        assert not [each for each in kept if isinstance(each, ProfileReport)]


def test_a_report_that_cannot_be_read_any_more_is_left_out_and_counted(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", max_bytes=1 << 20)
    add(spool, done(1))
    add(spool, done(2))
    first = min((tmp_path / "spool").glob("0-done-*"))
    first.write_text('{"half": ')
    assert reports(spool) == [done(2)]
    assert (spool.lost, len(spool)) == (1, 1)


def test_half_a_file_that_a_kill_left_is_no_report(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    spool = Spool(folder, max_bytes=1 << 20)
    add(spool, done(1))
    (folder / ".abc.partial").write_bytes(b"{")
    (folder / "0-done-x.json").write_bytes(b"{}")
    assert reports(Spool(folder, max_bytes=1 << 20)) == [done(1)]
    assert not (folder / ".abc.partial").exists()


def test_a_folder_that_cannot_be_written_is_a_temporary_error(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", max_bytes=1 << 20)
    for each in (tmp_path / "spool").iterdir():
        each.unlink()
    (tmp_path / "spool").rmdir()
    with raises_naming(TemporaryError, str(tmp_path / "spool")):
        add(spool, done(1))


def test_what_the_operator_cannot_keep_now_stays_and_comes_again(tmp_path: Path) -> None:
    world = PodWorld(tmp_path)
    world.turn()
    world.operator.said.clear()
    add(world.ctx.spool, profile(1))
    world.operator.full = True
    with pytest.raises(TemporaryError):
        flush(world.ctx)
    world.operator.full = False
    flush(world.ctx)
    assert world.operator.said == [profile(1)]
    assert len(world.ctx.spool) == 0


@pytest.mark.parametrize(
    ("code", "stays"),
    [
        ("body-invalid", False),
        ("body-too-large", False),
        ("whatever", False),
        ("pod-unknown", True),
        ("status-404", True),
    ],
)
def test_a_report_that_is_refused_for_good_keeps_no_other_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, stays: bool
) -> None:
    world = PodWorld(tmp_path)
    add(world.ctx.spool, profile(1))
    refused = Refused("no")
    refused.code = code

    def refuse(_: object, *, traceparent: str) -> None:
        raise refused

    monkeypatch.setattr(world.operator, "post", refuse)
    if stays:
        with pytest.raises(Refused):
            flush(world.ctx)
    else:
        flush(world.ctx)
    assert len(world.ctx.spool) == int(stays)


def test_the_operator_learns_how_many_reports_were_lost(tmp_path: Path) -> None:
    world = PodWorld(tmp_path, spool_bytes=2_000)
    for number in range(20):
        add(world.ctx.spool, profile(number))
    from retuned.api.agent import Hello

    world.turn()
    (hello,) = world.said(Hello)
    assert hello.lost == world.ctx.spool.lost > 0
