"""What a candidate could only know or forge if the harness let it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from tests.expect import raises_naming
from tests.hostile.cpu_kernels import HONEST, LINEAR, linear, variant

from retuned import catalog
from retuned.contract import Workload
from retuned.errors import CandidateError, HarnessError
from retuned.lab.examiner import Examiner
from retuned.lab.harness.schedule import CANDIDATE, INCUMBENT, TimedCall
from retuned.lab.harness.timing import Duel
from retuned.lab.harness.worker import Elapsed, Worker
from retuned.lab.resources import LabResources, LabSettings
from retuned.stages.verdict import Check, Reason

SHAPE = {"M": 4}
SETTINGS = LabSettings(search_s=0.2, search_blocks=3, final_s=0.3, launch_timeout_s=2.0)


@pytest.fixture(scope="module")
def bay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabResources]:
    entry = catalog.get(LINEAR)
    opened = LabResources(
        entry,
        [Workload(definition=LINEAR, axes=SHAPE)],
        incumbent=entry.incumbent,
        folder=tmp_path_factory.mktemp("lab"),
        settings=SETTINGS,
    )
    yield opened
    opened.close()


def test_no_seed_and_no_answer_reaches_a_child(
    bay: LabResources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H14, H28, H29: when a candidate runs, what is expected of it is nowhere in its process."""
    drawn: list[int] = []
    seed = bay.seeds.seed

    def remembered(*names: object) -> int:
        drawn.append(seed(*names))
        return drawn[-1]

    monkeypatch.setattr(bay.seeds, "seed", remembered)
    told: list[tuple[str, bytes]] = []
    command = Worker.command

    def overheard(self: Worker, body: Mapping[str, Any], *, timeout_s: float) -> Any:
        if bay_child := runner_memory.get(id(self)):
            told.append((repr(body), bay_child._arena._bytes.tobytes()))
        return command(self, body, timeout_s=timeout_s)

    runner_memory: dict[int, Any] = {}
    monkeypatch.setattr(Worker, "command", overheard)
    candidate = bay.compiled(variant(linear(HONEST)))
    cell = bay.cells[1]
    case = bay.case(bay.book, cell)
    with bay.runner(candidate) as runner:
        runner_memory[id(runner._worker)] = runner
        runner.run(case.inputs, cell.axes, timeout_s=5.0)
    assert told
    assert drawn
    secrets = [case.incumbent["y"], case.reference["y"], case.reference["y"].astype(np.float32)]
    for text, memory in told:
        assert case.inputs["x"].tobytes() in memory  # so that finding nothing means something
        assert not any(array.tobytes()[:32] in memory for array in secrets)
        assert not any(str(number) in text for number in drawn if number > 99_999)


class Forger:
    """A child that answers what it likes."""

    def __init__(self, times_ns: Mapping[int, int], *, busy_ns: int = 0) -> None:
        self._times, self._busy_ns = times_ns, busy_ns

    def prepare(self, *_: object) -> None:
        pass

    def push(self, *_: object) -> None:
        pass

    def pull(self, *_: object) -> None:
        pass

    def command(self, body: Mapping[str, Any], *, timeout_s: float) -> tuple[Any, Elapsed]:
        del timeout_s
        if body["op"] == "run":
            return {"ns": 1}, Elapsed(wall_ns=1, busy_ns=1)
        times = [self._times[which] * repeat for which, _, repeat, *_ in body["calls"]]
        real = self._busy_ns or sum(times)
        return {"times": times, "elapsed": sum(times)}, Elapsed(wall_ns=real, busy_ns=real)


def duel_with(bay: LabResources, forger: Forger) -> Iterator[Duel]:
    sides = [bay.incumbent, bay.compiled(variant(linear(HONEST)))]
    with bay.duel(sides) as duel:
        duel._worker = forger  # type: ignore[assignment]
        yield duel


def test_how_often_is_measured_depends_on_the_incumbent_alone(bay: LabResources) -> None:
    """H24: a candidate that is slow at first does not make the judge content with less."""
    found = []
    for candidate_ns in (2_000, 50_000_000):
        for duel in duel_with(bay, Forger({INCUMBENT: 2_000, CANDIDATE: candidate_ns})):
            one_us = duel.prepare(SHAPE, bay.sets(0, bay.seeds), seed=1)
            assert duel._scheduler is not None
            found.append((one_us, duel._scheduler.block([CANDIDATE]).calls[0].repeat))
    assert found[0] == found[1] == (2.0, 10)


def test_times_that_the_child_makes_up_are_found_by_the_parent_s_clock(bay: LabResources) -> None:
    """H21, H27: whoever holds the clock in the child, the parent has one of its own."""
    fast = {INCUMBENT: 100_000, CANDIDATE: 1_000}
    for duel in duel_with(bay, Forger(fast, busy_ns=2_000_000_000)):
        with pytest.raises(CandidateError) as refused:
            duel.prepare(SHAPE, bay.sets(0, bay.seeds), seed=1)
        assert refused.value.reason == "clocks-disagree"
    honest = {INCUMBENT: 100_000, CANDIDATE: 100_000}
    for duel in duel_with(bay, Forger(honest)):
        duel.prepare(SHAPE, bay.sets(0, bay.seeds), seed=1)
        agreed = duel.check_clocks(candidate_us=100.0, incumbent_us=100.0, gate="G6")
        assert agreed.reason is None, agreed
        # What was claimed of short calls does not hold in the long run.
        found = duel.check_clocks(candidate_us=10.0, incumbent_us=100.0, gate="G6")
        assert found.reason is Reason.CLOCKS_DISAGREE


def test_a_long_run_in_which_the_machine_stood_still_is_made_once_more(bay: LabResources) -> None:
    class Stalled(Forger):
        stalls = 1

        def command(self, body: Mapping[str, Any], *, timeout_s: float) -> tuple[Any, Elapsed]:
            answer, elapsed = super().command(body, timeout_s=timeout_s)
            if Stalled.stalls and len(body["calls"]) == 1 and body["calls"][0][0] == CANDIDATE:
                Stalled.stalls -= 1
                took = answer["times"][0] + 5_000_000_000
                return {"times": [took], "elapsed": took}, Elapsed(wall_ns=took, busy_ns=took)
            return answer, elapsed

    for duel in duel_with(bay, Stalled({INCUMBENT: 100_000, CANDIDATE: 100_000})):
        duel.prepare(SHAPE, bay.sets(0, bay.seeds), seed=1)
        agreed = duel.check_clocks(candidate_us=100.0, incumbent_us=100.0, gate="G6")
        assert (agreed.reason, Stalled.stalls) == (None, 0), agreed


@pytest.mark.parametrize(
    "times", [[], [0, 1, 1, 1], [-5, 1, 1, 1], [10**12, 1, 1, 1]], ids=["none", "0", "-5", "long"]
)
def test_times_that_cannot_be_are_refused(bay: LabResources, times: list[int]) -> None:
    class Liar(Forger):
        def command(self, body: Mapping[str, Any], *, timeout_s: float) -> tuple[Any, Elapsed]:
            return {"times": times, "elapsed": 100}, Elapsed(wall_ns=100, busy_ns=100)

    for duel in duel_with(bay, Liar({})):
        with pytest.raises(CandidateError) as caught:
            duel.prepare(SHAPE, bay.sets(0, bay.seeds), seed=1)
        assert caught.value.reason == "clocks-disagree"


def test_a_candidate_that_is_fast_on_what_it_has_seen_is_refused(bay: LabResources) -> None:
    """H11, H13: wherever answers are kept, new content makes keeping them useless."""

    class Remembering(Forger):
        def command(self, body: Mapping[str, Any], *, timeout_s: float) -> tuple[Any, Elapsed]:
            answer, _ = super().command(body, timeout_s=timeout_s)
            for place, (which, _, repeat, *_) in enumerate(body.get("calls", ())):
                again = which == CANDIDATE and repeat > 5
                answer["times"][place] = repeat * (300 if again else 2_000)
            total = sum(answer.get("times", (1,)))
            return {**answer, "elapsed": total}, Elapsed(wall_ns=total, busy_ns=total)

    for forger, reason in (
        (Forger({INCUMBENT: 2_000, CANDIDATE: 300}), None),
        (Remembering({INCUMBENT: 2_000, CANDIDATE: 2_000}), Reason.IMPOSSIBLY_FAST),
    ):
        for duel in duel_with(bay, forger):
            duel.prepare(SHAPE, bay.sets(0, bay.seeds), seed=1)
            duel.block([CANDIDATE] * 4)
            assert duel._check_conduct(Check(gate="G5")).reason is reason


def test_a_launch_that_writes_other_launches_outputs_is_found(bay: LabResources) -> None:
    """H15: in whatever order they will come, their outputs are theirs."""
    for duel in duel_with(bay, Forger({INCUMBENT: 2_000, CANDIDATE: 2_000})):
        duel.prepare(SHAPE, bay.sets(0, bay.seeds), seed=1)
        assert duel._check_conduct(Check(gate="G5")).reason is None

        class Eager(Forger):
            def command(self, body: Mapping[str, Any], *, timeout_s: float) -> tuple[Any, Elapsed]:
                duel._arena.fill([duel.placed.outputs[3]["y"]], 0)  # noqa: B023 - used in here
                return super().command(body, timeout_s=timeout_s)

        duel._worker = Eager({})  # type: ignore[assignment]
        found = duel._check_conduct(Check(gate="G5"))
        assert found.reason is Reason.OUT_OF_BOUNDS
        assert "outputs of others" in found.detail


def test_an_answer_to_another_question_is_no_answer(
    bay: LabResources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H26: what is written into the pipe without having read the question is found out."""
    with bay.runner(bay.incumbent) as runner:
        monkeypatch.setattr(runner._worker, "_receive", lambda _: {"nonce": "00", "ns": 1})
        case = bay.case(bay.book, bay.cells[0])
        with raises_naming(HarnessError, "command"):
            runner.run(case.inputs, bay.cells[0].axes, timeout_s=2.0)


def test_the_newest_of_the_timed_outputs_is_checked(bay: LabResources) -> None:
    """H43: a kernel that is wrong in the end is wrong, however right it was before."""
    candidate = bay.compiled(variant(linear(HONEST)))
    with bay.duel([bay.incumbent, candidate]) as duel:
        duel.prepare(SHAPE, bay.sets(0, bay.seeds), seed=3)
        duel.block([CANDIDATE, CANDIDATE])
        assert duel.check_outputs(gate="G5").reason is None
        duel.block([CANDIDATE])
        newest = duel._newest()
        assert newest is not None
        region = duel.placed.outputs[newest]["y"]
        bay_memory = duel._arena.view(region, np.dtype(np.float32), (4, 48))
        bay_memory[3, 47] *= 1.01
        check = duel.check_outputs(gate="G5")
        assert check.reason is Reason.TIMED_OUTPUT_WRONG, check


def test_every_timed_call_may_be_the_one_that_is_checked(bay: LabResources) -> None:
    candidate = bay.compiled(variant(linear(HONEST)))
    with bay.duel([bay.incumbent, candidate]) as duel:
        duel.prepare(SHAPE, bay.sets(0, bay.seeds), seed=4)
        assert duel._scheduler is not None
        calls: list[TimedCall] = [
            call for _ in range(8) for call in duel._scheduler.block([CANDIDATE] * 3).calls
        ]
    assert {call.poison for call in calls} == {0xFF, 0x5A}
    assert all(call.swaps for call in calls)
    last = {(call.first + call.repeat - 1) % 5 for call in calls if call.which == CANDIDATE}
    assert last == set(range(5))


def test_the_gates_run_in_order_and_end_with_the_first_refusal(bay: LabResources) -> None:
    examiner = Examiner(bay)
    variant_of, checks = examiner.admit(variant(linear("y[0] = getenv(0) ? 1 : 0;")))
    assert variant_of is None
    assert [(check.gate, check.reason) for check in checks] == [("G1", Reason.CONTRACT)]
