"""The loop over a kernel that a file configures: from traffic to a row that is picked, and back.

The server is real processes that read a file as vLLM does; the lab is scripted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.standalone.file_world import DEFINITION, LARGE, ROWS, SMALL, WON, FileWorld
from tests.standalone.local_world import Killed, auto_policy
from tests.standalone.tunable_world import TunableWorld

from retuned import catalog
from retuned.contract import Language
from retuned.errors import CandidateError
from retuned.node.order_store import latest
from retuned.stages.gate import KernelTuningPolicy
from retuned.standalone.context import RecordKind
from retuned.store.keys import Ed25519Notary


@pytest.fixture
def files(tmp_path: Path) -> Iterator[FileWorld]:
    made = FileWorld(tmp_path)
    yield made
    made.close()


def ask_back(files: FileWorld | TunableWorld, proposal: str) -> None:
    body = {"target": proposal, "what": "rollback", "who": "ada", "reason": "a test"}
    files.world.store.add(RecordKind.REQUEST, f"back-{proposal}", body, phase="new")


def policy_with(files: FileWorld, **spec: object) -> None:
    body = auto_policy().model_dump(mode="json", by_alias=True)
    body["spec"] |= spec
    files.world.policies = (KernelTuningPolicy.model_validate(body),)


def test_a_row_goes_from_traffic_to_the_server_and_back_byte_by_byte(files: FileWorld) -> None:
    server = files.start()
    id = files.swap()
    assert files.phase(id) == "Analyzing", files.trail(id)
    assert server.picks(16, 64, 65, 128) == [WON, SMALL, LARGE, LARGE]
    assert files.file.read_bytes() != files.original
    files.look(3)
    assert files.phase(id) == "Promoted"
    assert ("promoted", "proven") in files.trail(id)
    ask_back(files, id)
    files.look()
    assert files.phase(id) == "RolledBack"
    assert files.file.read_bytes() == files.original
    assert server.picks(16, 64, 65, 128) == [SMALL, SMALL, LARGE, LARGE]
    assert files.world.unexpected() == 0.0


def test_what_a_proposal_writes_is_named_in_it_with_the_file_that_it_is_for(
    files: FileWorld,
) -> None:
    files.start()
    files.drift()
    (stored,) = files.world.store.list(RecordKind.PROPOSAL, phase="AwaitingApproval")
    written = files.world.store.get(RecordKind.FILE_CHANGE, stored.id)
    assert written is not None
    change = json.loads(written.body["text"])
    assert stored.body["change"] == written.body["digest"]
    assert change["before"] == "sha256:" + hashlib.sha256(files.original).hexdigest()
    assert change["rows"] == [{"M": 9, "config": WON}], "what no lab knows is carried over"
    assert change["guard"] == [[9, 16]], "the bucket that was measured, and no more"
    (told,) = [e for e in files.world.store.events(id=stored.id) if e.what == "writes-file"]
    assert (told.detail["path"], told.detail["rows"]) == (str(files.file), change["rows"])
    (file,) = files.world.store.list(RecordKind.FILE, phase="tuned")
    assert (file.id, file.body["path"]) == (DEFINITION, str(files.file))
    assert files.file.read_bytes() == files.original, "nothing is written before it is approved"


def test_a_file_that_somebody_changes_before_the_order_is_refused_and_left_alone(
    files: FileWorld,
) -> None:
    server = files.start()
    files.drift()
    (stored,) = files.world.store.list(RecordKind.PROPOSAL, phase="AwaitingApproval")
    theirs = json.dumps(ROWS | {"4096": LARGE}).encode()
    files.file.write_bytes(theirs)
    files.world.approve_what_waits()
    files.look(2)
    assert files.phase(stored.id) in ("RolledBack", "Superseded"), files.trail(stored.id)
    assert files.file.read_bytes() == theirs
    assert server.picks(16) == [SMALL]


def test_a_file_that_somebody_changes_afterwards_is_theirs_and_the_swap_ends(
    files: FileWorld,
) -> None:
    server = files.start()
    id = files.swap()
    theirs = json.dumps(ROWS | {"4096": LARGE}).encode()
    files.file.write_bytes(theirs)
    files.look(2)
    assert files.phase(id) == "RolledBack", files.trail(id)
    assert ("harm-detected", "tripped") in files.trail(id)
    assert files.file.read_bytes() == theirs
    assert server.picks(16) == [SMALL], "nothing of ours is left in a cache"


def test_a_server_that_is_started_anew_is_proven_to_pick_the_row_again(files: FileWorld) -> None:
    files.start()
    id = files.swap()
    files.look(3)
    written = files.file.read_bytes()
    files.servers[0].stop()
    files.look(2)
    assert files.phase(id) == "Promoted", "a server that is away says nothing against a row"
    server = files.start()
    files.look(3)
    assert files.phase(id) == "Promoted", files.trail(id)
    assert (server.picks(16), files.file.read_bytes()) == ([WON], written)
    ask_back(files, id)
    files.look()
    assert (files.phase(id), files.file.read_bytes()) == ("RolledBack", files.original)
    assert server.picks(16) == [SMALL]


def test_a_daemon_that_is_started_anew_takes_back_what_it_wrote_before(files: FileWorld) -> None:
    server = files.start()
    id = files.swap()
    files.restart_daemon()
    files.look()
    assert files.phase(id) == "Analyzing"
    ask_back(files, id)
    files.look()
    assert (files.phase(id), files.file.read_bytes()) == ("RolledBack", files.original)
    assert server.picks(16) == [SMALL]


def test_all_ranks_of_a_server_pick_the_row_of_the_file_that_one_of_them_wrote(
    files: FileWorld,
) -> None:
    servers = [files.start() for _ in range(3)]
    id = files.swap()
    files.look(3)
    assert files.phase(id) == "Promoted", files.trail(id)
    assert [server.picks(16) for server in servers] == [[WON]] * 3
    ask_back(files, id)
    files.look()
    assert files.phase(id) == "RolledBack"
    assert [server.picks(16) for server in servers] == [[SMALL]] * 3
    assert files.file.read_bytes() == files.original


def test_a_rank_that_comes_late_is_told_and_picks_the_row_too(files: FileWorld) -> None:
    files.start()
    id = files.swap()
    late = files.start()
    files.look(5)
    assert late.picks(16) == [WON]
    assert files.phase(id) == "Promoted", files.trail(id)
    sample = next(iter(files.world.loop.ctx.swapper.samples()))
    assert (sample.processes, sample.idle_processes) == (2, 0)


def test_a_rank_whose_cache_does_not_empty_sends_all_back_and_the_row_is_gone(
    files: FileWorld,
) -> None:
    servers = [files.start(), files.start(RETUNED_TEST_CACHE="stuck"), files.start()]
    for server in servers:
        server.picks(16)
    id = files.swap()
    assert files.phase(id) == "RolledBack", files.trail(id)
    assert ("harm-detected", "partial-commit") in files.trail(id)
    assert [server.picks(16) for server in servers] == [[SMALL]] * 3
    assert files.file.read_bytes() == files.original


def test_a_server_whose_cache_does_not_empty_has_refused_and_its_file_is_back(
    files: FileWorld,
) -> None:
    server = files.start(RETUNED_TEST_CACHE="stuck")
    server.picks(16)
    id = files.swap()
    assert files.phase(id) == "RolledBack"
    assert ("order-refused", "not-engaged") in files.trail(id)
    assert (files.file.read_bytes(), server.picks(16)) == (files.original, [SMALL])


def test_a_process_that_reads_no_such_file_takes_no_part(files: FileWorld) -> None:
    server = files.start()
    files.start(RETUNED_TEST_READS="nothing")
    id = files.swap()
    assert files.phase(id) == "Analyzing", files.trail(id)
    assert server.picks(16) == [WON]


def test_a_server_without_a_file_gets_one_that_keeps_its_defaults_and_none_afterwards(
    files: FileWorld,
) -> None:
    files.file.unlink()
    server = files.start(RETUNED_TEST_DEFAULTS=json.dumps([SMALL, LARGE]))
    before = server.picks(*range(1, 300))
    id = files.swap()
    assert files.phase(id) == "Analyzing", files.trail(id)
    expected = [WON if 9 <= m <= 16 else was for m, was in enumerate(before, start=1)]
    assert server.picks(*range(1, 300)) == expected
    ask_back(files, id)
    files.look()
    assert files.phase(id) == "RolledBack"
    assert not files.file.exists()
    assert server.picks(*range(1, 300)) == before


def test_a_server_that_trusts_the_daemons_key_takes_its_change_and_nobody_elses(
    files: FileWorld,
) -> None:
    server = files.start(RETUNED_TRUSTED_KEY=files.notary.public_hex())
    id = files.swap()
    assert (files.phase(id), server.picks(16)) == ("Analyzing", [WON])


def test_a_server_that_trusts_another_key_refuses_and_its_file_stays(
    files: FileWorld, tmp_path: Path
) -> None:
    other = Ed25519Notary(tmp_path / "other").public_hex()
    server = files.start(RETUNED_TRUSTED_KEY=other)
    id = files.swap()
    assert files.phase(id) == "RolledBack"
    assert ("order-refused", "signature-unknown-key") in files.trail(id)
    assert (files.file.read_bytes(), server.picks(16)) == (files.original, [SMALL])


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"validation": {"endToEnd": "required"}}, "end-to-end-unavailable"),
        (
            {"rollout": {"canary": {"steps": [{"fraction": 0.1}], "bake": "0s"}}},
            "canary-not-possible",
        ),
        ({"liveProof": {"mode": "required"}}, "live-proof-unavailable"),
        (
            {"liveProof": {"mode": "required", "whenNotSwitchable": "canary"}},
            "canary-replicas-unavailable",
        ),
    ],
)
def test_a_policy_that_wants_what_no_file_can_give_keeps_the_change_waiting(
    files: FileWorld, spec: dict[str, object], reason: str
) -> None:
    policy_with(files, **spec)
    server = files.start()
    id = files.swap()
    assert files.phase(id) == "Scheduled"
    assert files.trail(id).count(("scheduled", reason)) == 1
    assert (files.file.read_bytes(), server.picks(16)) == (files.original, [SMALL])


def test_a_file_is_kept_unmeasured_where_the_policy_says_so(files: FileWorld) -> None:
    policy_with(files, liveProof={"mode": "required", "whenNotSwitchable": "keep"})
    server = files.start()
    id = files.swap()
    files.look(8)
    assert files.phase(id) == "Promoted", files.trail(id)
    assert server.picks(16) != [SMALL]
    assert files.world.store.list(RecordKind.LIVE_PROOF) == []


def test_a_win_that_no_row_can_say_is_not_proposed(files: FileWorld) -> None:
    gated = catalog.get(DEFINITION, language=Language.TRITON)
    files.found = gated.solution("gated", dict(files.found.params))
    files.connect()
    files.start()
    files.drift()
    assert files.world.store.list(RecordKind.PROPOSAL) == []
    (experiment,) = files.world.store.list(RecordKind.EXPERIMENT, phase="refused")
    assert ("not-proposed", "not-a-row") in files.trail(experiment.id)


def test_a_row_that_the_labs_kernel_cannot_say_is_left_and_named(files: FileWorld) -> None:
    files.file.write_text(json.dumps({"1": SMALL | {"BLOCK_SIZE_N": 48}}))
    files.start()
    files.drift()
    (left,) = files.world.store.list(RecordKind.FILE, phase="left")
    assert left.body["reason"] == "row-does-not-map"
    assert files.world.store.list(RecordKind.EXPERIMENT) == []


def test_what_is_in_force_is_shown_as_a_slot_whose_launches_nobody_counts(
    files: FileWorld,
) -> None:
    files.start()
    files.swap()
    (slot,) = files.world.loop.ctx.swapper.slots()
    assert (slot.definition, slot.active, slot.counted) == (DEFINITION, files.found.digest, False)
    (kept,) = latest(files.world.store).values()
    with pytest.raises(CandidateError) as switched:
        files.world.loop.ctx.swapper.bypass(DEFINITION, on=True)
    with pytest.raises(CandidateError) as ramped:
        files.world.loop.ctx.swapper.ramp(kept.order, fraction=0.5, excluded=())
    assert switched.value.reason == ramped.value.reason == "not-switchable"


def test_where_no_server_reads_files_nothing_is_looked_at(files: FileWorld) -> None:
    files.start(RETUNED_TEST_READS="nothing")
    files.drift()
    assert files.world.store.list(RecordKind.FILE) == []
    assert files.world.unexpected() == 0.0


def until(files: FileWorld, wanted: str, *, deaths: int) -> str:
    """Let the daemon look until its proposal is there, killing it a write later each time."""
    (stored,) = files.world.store.list(RecordKind.PROPOSAL)
    for later in range(40):
        files.world.kill_at = files.world.boundaries + deaths + later
        try:
            files.look()
        except Killed:
            files.restart_daemon()
        if files.phase(stored.id) == wanted:
            files.world.kill_at = None
            return stored.id
    raise AssertionError(files.trail(stored.id))


@pytest.mark.parametrize("deaths", [1, 9, 17])
def test_a_daemon_that_is_killed_over_and_over_ends_with_the_row_and_then_with_the_file(
    files: FileWorld, deaths: int
) -> None:
    server = files.start()
    files.drift()
    files.approve()
    id = until(files, "Analyzing", deaths=deaths)
    assert server.picks(16, 64) == [WON, SMALL]
    ask_back(files, id)
    until(files, "RolledBack", deaths=deaths)
    assert files.file.read_bytes() == files.original
    assert server.picks(16, 64) == [SMALL, SMALL]
