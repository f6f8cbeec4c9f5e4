"""The loop over tunables: from traffic to a table in force, and back.

The server is a real process with a real autotuner in Triton's interpreter. One story has the real
lab; in the others the lab is scripted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests.standalone.local_world import Killed
from tests.standalone.test_configured_loop import ask_back
from tests.standalone.tunable_world import SIZE, ScriptedLab, TunableWorld

from retuned.cli.attach import detach
from retuned.contract import Digest
from retuned.errors import HarnessError, MissingDependency
from retuned.experiment.tunables import TunableLab
from retuned.ports import Finding
from retuned.stages.experiment import ExperimentPlan
from retuned.stages.watch import EndToEndSettings, Served, ServerResponse
from retuned.standalone.context import RecordKind
from retuned.standalone.daemon import Loop
from retuned.standalone.proofs import end_to_end


class NothingToGain(ScriptedLab):
    """Finds that the server's choice is the best."""

    speedup = 1.0


@pytest.fixture
def tuned(tmp_path: Path) -> Iterator[TunableWorld]:
    made = TunableWorld(tmp_path)
    yield made
    made.close()


def promoted(tuned: TunableWorld) -> str:
    """Go as far as a promoted table."""
    id = tuned.swap()
    tuned.look(4)
    assert tuned.phase(id) == "Promoted", tuned.trail(id)
    return id


def test_a_choice_made_once_is_found_tried_by_the_real_lab_swapped_and_taken_back(
    tmp_path: Path,
) -> None:
    tuned = TunableWorld(tmp_path, lab=TunableLab)
    try:
        server = tuned.start()
        assert server.launch(1) == 16
        id = promoted(tuned)
        assert server.launch(1) == 256
        assert server.launch(1, size=64) == 16, "only the sizes that were measured change"
        ask_back(tuned, id)
        tuned.look()
        assert tuned.phase(id) == "RolledBack", tuned.trail(id)
        assert server.launch(1) == 16
        assert tuned.world.unexpected() == 0.0
    finally:
        tuned.close()


def test_a_table_goes_from_traffic_to_the_server_and_back(tuned: TunableWorld) -> None:
    server = tuned.start()
    assert server.launch(1) == 16
    id = promoted(tuned)
    assert server.launch(1) == 256
    assert [each for each in tuned.trail(id) if each[0] == "writes-table"]
    ask_back(tuned, id)
    tuned.look()
    assert tuned.phase(id) == "RolledBack", tuned.trail(id)
    assert server.launch(1) == 16
    assert tuned.world.unexpected() == 0.0


def test_a_table_that_is_wrong_live_serves_nothing_and_is_rolled_back(tuned: TunableWorld) -> None:
    wrong = "tl.where(BLOCK == 256, x * 3.0, x * 2.0)"
    server = tuned.start(RETUNED_TEST_PRODUCT=wrong)
    id = tuned.swap()
    server.launch(1)  # raises if the answer is wrong
    tuned.look(2)
    assert tuned.phase(id) == "RolledBack", tuned.trail(id)
    reasons = {reason for _, reason in tuned.trail(id)}
    assert "table-shadow-mismatch" in " ".join(reasons) or "tripped" in " ".join(reasons), reasons
    assert server.launch(2) == 16


@dataclass
class Users:
    """Asks the server as its users do: it is as fast as the block that runs."""

    tuned: TunableWorld
    faster: bool = True
    blocks: list[int] = field(default_factory=list)
    dies_at: int | None = None

    def serve(self) -> Served:
        blocks = {each.launch(1) for each in self.tuned.servers}
        assert len(blocks) == 1, "all processes are switched"
        self.blocks.append(blocks.pop())
        if len(self.blocks) == self.dies_at:
            raise KeyboardInterrupt
        self.tuned.world.clock.advance(1.0)
        wall_s = 0.4 if self.faster and self.blocks[-1] == 256 else 1.0
        answers = (ServerResponse(tokens=("word",) * 32, ttft_s=0.1, tpot_s=0.1),) * 32
        return Served(answers=answers, wall_s=wall_s * (1.0 + 0.002 * (len(self.blocks) % 3)))


def measured(tuned: TunableWorld, users: Users) -> str:
    """Put a table in force that the policy wants measured, and let the daemon measure it."""
    tuned.permit(validation={"endToEnd": "required"})
    ctx = tuned.world.loop.ctx
    settings = replace(ctx.settings, end_to_end=EndToEndSettings(looks=(4, 8)))
    tuned.world.loop = Loop(replace(ctx, end_to_end=users, settings=settings))
    id = tuned.swap()
    tuned.look(6)
    return id


def test_a_table_is_switched_off_and_on_and_kept_for_what_the_server_gains(
    tuned: TunableWorld,
) -> None:
    tuned.start()
    tuned.start()
    users = Users(tuned)
    id = measured(tuned, users)
    assert set(users.blocks) == {16, 256}
    assert tuned.phase(id) == "Promoted", tuned.trail(id)
    assert "end-to-end-pass" in dict(tuned.trail(id))
    assert [each.launch(1) for each in tuned.servers] == [256, 256]


def test_a_table_from_which_the_server_gains_nothing_is_rolled_back(tuned: TunableWorld) -> None:
    server = tuned.start()
    users = Users(tuned, faster=False)
    id = measured(tuned, users)
    assert tuned.phase(id) == "RolledBack", tuned.trail(id)
    assert "end-to-end-fail" in dict(tuned.trail(id))
    assert server.launch(1) == 16


def test_a_daemon_that_was_killed_while_a_table_was_off_switches_it_on(tuned: TunableWorld) -> None:
    server = tuned.start()
    users = Users(tuned, dies_at=2)
    with pytest.raises(KeyboardInterrupt):
        measured(tuned, users)
    # a kill leaves the table off, which an exception does not
    tuned.world.loop.ctx.swapper.bypass(tuned.tunable()["definition"], on=True)
    assert server.launch(1) == 16
    tuned.restart_daemon()
    end_to_end.switch_on(tuned.world.loop.ctx)
    assert server.launch(1) == 256


def test_all_processes_of_a_server_get_the_table(tuned: TunableWorld) -> None:
    servers = [tuned.start(), tuned.start()]
    promoted(tuned)
    assert [each.launch(1) for each in servers] == [256, 256]


def test_a_server_that_starts_again_gets_its_table_with_its_first_launches(
    tuned: TunableWorld,
) -> None:
    id = None
    tuned.start()
    id = promoted(tuned)
    tuned.servers[0].kill()
    server = tuned.start()
    tuned.look(2)
    assert server.launch(1) == 16
    tuned.look(2)
    assert server.launch(1) == 256
    assert tuned.phase(id) == "Promoted"
    assert tuned.world.unexpected() == 0.0


def test_detach_brings_the_original_back_without_a_restart(
    tuned: TunableWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    server = tuned.start()
    id = promoted(tuned)
    assert server.launch(1) == 256
    detach(socket_dir=tuned.folder / "sockets", as_json=True)
    (row,) = json.loads(capsys.readouterr().out)["processes"]
    assert row["original"] is True
    until_s = time.monotonic() + 30.0
    while list((tuned.folder / "sockets").glob("*.sock")):
        assert time.monotonic() < until_s
        time.sleep(0.05)
    assert server.launch(9) == 16
    tuned.look(3)
    assert tuned.phase(id) == "Promoted"
    assert tuned.world.unexpected() == 0.0
    with pytest.raises(MissingDependency, match="none is detached"):
        detach(socket_dir=tuned.folder / "sockets")
    server.stop()
    again = tuned.start()
    again.launch(9)
    tuned.look(2)
    assert again.launch(1) == 256


def test_a_server_of_another_version_is_left_as_it_is(tuned: TunableWorld) -> None:
    tuned.start()
    id = promoted(tuned)
    tuned.servers[0].kill()
    server = tuned.start(RETUNED_TEST_PRODUCT="2.0 * x")
    assert server.launch(9) == 16
    tuned.look(3)
    assert server.launch(9) == 16
    assert tuned.phase(id) == "RolledBack", tuned.trail(id)
    assert ("harm-detected", "source-differs") in tuned.trail(id)


def test_where_nothing_is_gained_the_search_is_not_repeated_and_says_why(tmp_path: Path) -> None:
    tuned = TunableWorld(tmp_path, lab=NothingToGain)
    try:
        tuned.start()
        tuned.serve(6)
        (experiment,) = tuned.world.store.list(RecordKind.EXPERIMENT)
        done = tuned.world.store.events(id=experiment.id)[-1].detail
        assert (done["next"], done["why"]) == ("searched", "a script")
        assert tuned.tunable()["reason"] == "all-tried"
        assert tuned.world.store.list(RecordKind.PROPOSAL) == []
    finally:
        tuned.close()


class Broken(ScriptedLab):
    """Fails as a lab whose server cannot be paused."""

    fails = 1

    def run(self, plan: ExperimentPlan, *, known: Mapping[Digest, Finding]) -> Iterator[Finding]:
        if self.fails > 0:
            self.fails -= 1
            raise HarnessError("the server was not paused")
        yield from super().run(plan, known=known)


def test_an_experiment_that_failed_is_repeated_later_and_no_earlier(tmp_path: Path) -> None:
    tuned = TunableWorld(tmp_path, lab=Broken)
    try:
        tuned.start()
        tuned.serve(6)
        assert tuned.world.phases(RecordKind.EXPERIMENT) == ["failed"]
        assert tuned.tunable()["reason"] == "experiment-failed"
        tuned.look(13, seconds=50.0)
        tuned.serve(4)
        assert tuned.world.phases(RecordKind.EXPERIMENT) == ["failed", "proposed"]
        assert tuned.world.unexpected() == 0.0
    finally:
        tuned.close()


def test_a_server_that_ends_during_its_experiment_fails_it_by_name(tmp_path: Path) -> None:
    tuned = TunableWorld(tmp_path)
    try:
        server = tuned.start()
        tuned.serve(2)
        server.launch(16)
        tuned.world.clock.advance(5.0)
        tuned.world.loop.observe()
        assert tuned.world.phases(RecordKind.HYPOTHESIS) == ["open"]
        server.kill()
        tuned.look()
        (experiment,) = tuned.world.store.list(RecordKind.EXPERIMENT)
        assert experiment.phase == "failed"
        said = tuned.world.store.events(id=experiment.id)[-1]
        assert (said.what, "any more" in str(said.detail)) == ("experiment-failed", True)
    finally:
        tuned.close()


def test_traffic_of_another_size_is_tried_and_the_old_size_keeps_its_rule(
    tuned: TunableWorld,
) -> None:
    server = tuned.start()
    first = promoted(tuned)
    tuned.serve(8, size=4 * SIZE)
    tuned.world.approve_what_waits()
    tuned.look(4)
    proposals = tuned.world.store.list(RecordKind.PROPOSAL)
    assert len(proposals) == 2, [tuned.trail(each.id) for each in proposals]
    second = next(each.id for each in proposals if each.id != first)
    assert (server.launch(1), server.launch(1, size=4 * SIZE)) == (256, 256)
    ask_back(tuned, second)
    tuned.look()
    assert tuned.phase(second) == "RolledBack", tuned.trail(second)
    assert (server.launch(1), server.launch(1, size=4 * SIZE)) == (256, 16)


def test_after_traffic_has_moved_away_new_sizes_are_tuned_and_old_rules_stay(
    tuned: TunableWorld,
) -> None:
    server = tuned.start()
    promoted(tuned)
    tuned.look(8, seconds=10.0)
    tuned.serve(4, size=4 * SIZE)
    tuned.world.approve_what_waits()
    tuned.look(4)
    assert server.launch(1, size=4 * SIZE) == 256
    assert server.launch(1) == 256


def test_a_server_that_does_not_launch_is_asked_again(tuned: TunableWorld) -> None:
    tuned.look(3)
    assert tuned.world.store.list(RecordKind.TUNABLE) == []
    tuned.start()
    tuned.look(3)
    assert tuned.world.store.list(RecordKind.TUNABLE) == []
    assert tuned.world.unexpected() == 0.0


def test_whole_numbers_are_recorded_where_owner_and_policy_allow_it(tmp_path: Path) -> None:
    tuned = TunableWorld(tmp_path, lab=TunableLab, captures=True)
    try:
        server = tuned.start(RETUNED_TEST_INDEX="1", RETUNED_CAPTURE="on")
        tuned.serve(4)
        assert tuned.tunable()["reason"] == "not-described"
        assert tuned.world.store.list(RecordKind.EXPERIMENT) == []
        tuned.permit(capture={"enabled": True})
        promoted(tuned)
        assert server.launch(1) == 256
    finally:
        tuned.close()


def test_seldom_launches_are_no_reason_to_try(tuned: TunableWorld) -> None:
    tuned.start()
    tuned.serve(4, launches=1)
    assert tuned.tunable()["reason"] == "no-traffic"
    assert tuned.world.store.list(RecordKind.EXPERIMENT) == []


def test_every_kill_ends_with_the_table_in_force(tmp_path: Path) -> None:
    for kill_at in (3, 6, 9, 12, 15, 18):
        folder = tmp_path / str(kill_at)
        folder.mkdir()
        tuned = TunableWorld(folder)
        try:
            server = tuned.start()
            tuned.serve(4)
            tuned.world.approve_what_waits()
            tuned.world.kill_at = tuned.world.boundaries + kill_at
            try:
                tuned.look(4)
            except Killed:
                tuned.restart_daemon()
            tuned.world.kill_at = None
            tuned.look(6)
            assert server.launch(1) == 256, kill_at
            (stored,) = tuned.world.store.list(RecordKind.PROPOSAL)
            assert stored.phase == "Promoted", (kill_at, tuned.trail(stored.id))
        finally:
            tuned.close()
