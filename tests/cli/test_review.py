"""Review commands on a real state: what people see, say, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.expect import raises_code, raises_naming
from tests.notify import heard
from tests.notify.heard import ARTIFACT
from tests.stages.watch_proof.blocks import proven
from typer.testing import CliRunner

from retuned.cli import review, stops
from retuned.cli.output import safe
from retuned.errors import Refused, RetunedError, UnreadableInput, UsageError
from retuned.ports import Event
from retuned.report.live_proof import compact_lines
from retuned.stages.gate import GateState, Mode, decide, explain
from retuned.stages.gate.description import live_proof_words
from retuned.stages.proposal import Proposal
from retuned.stages.watch.proof import Pace, forecast
from retuned.store.approvals import Approvals, Identity
from retuned.store.lock import only_one
from retuned.store.policy_files import load_policy
from retuned.store.sqlite import SqliteStore
from retuned.text import until

ROOT = Path(__file__).resolve().parents[2]
POLICY = load_policy(ROOT / "policies" / "laptop-demo.yaml")
OBSERVER = load_policy(ROOT / "policies" / "observe-only.yaml")
ID = "sha256:" + "ab12" * 16
TWIN = "sha256:" + "ab13" * 16
NOW = datetime.now(UTC)

Run = Callable[..., Any]


def proposal(**changes: Any) -> Proposal:
    mine: dict[str, Any] = {
        "id": ID,
        "target": "local",
        "created_at": datetime.now(UTC) - timedelta(minutes=10),  # tests run long after import
        "expires_at": datetime.now(UTC) + timedelta(hours=24),
    }
    return heard.proposal(**(mine | changes))


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteStore]:
    for name in ("RETUNED_CONFIG", "RETUNED_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(
        "retuned.cli.session.local_identity",
        lambda group_map: Identity(user="ada", groups=("gpu-platform",)),
    )
    store = SqliteStore(tmp_path / "state")
    yield store
    store.close()


def put(
    store: SqliteStore, phase: str = "AwaitingApproval", *, judged: bool = True, **changes: Any
) -> Proposal:
    one = proposal(**changes)
    store.add("proposal", one.id, one.model_dump(mode="json"), phase=phase)
    if judged:
        store.add("gate", one.id, ask(store, one).model_dump(mode="json"), phase="current")
    return one


def ask(store: SqliteStore, one: Proposal, **changes: Any) -> Any:
    values: dict[str, Any] = {
        "policy": POLICY,
        "policy_digest": POLICY.digest,
        "decisions": Approvals(store).decisions(one.id),
        "freezes": Approvals(store).freezes(now=datetime.now(UTC)),
        "env": "dev",
        "now": datetime.now(UTC),
    }
    return decide(one, **(values | changes))


@pytest.fixture
def run(state: SqliteStore) -> Run:
    app = typer.Typer()
    for name in ("proposals", "show", "approve", "reject", "abort", "rollback", "history"):
        app.command(name)(getattr(review, name))
    app.command("freeze")(stops.freeze)
    app.command("thaw")(stops.thaw)

    def invoke(*args: str, code: int = 0) -> Any:
        result = CliRunner().invoke(
            app, [*args, "--state-dir", str(state.path.parent)], env={"COLUMNS": "200"}
        )
        if isinstance(result.exception, Refused) and code == result.exception.exit_code:
            return result.output + str(result.exception)
        if isinstance(result.exception, RetunedError):
            raise result.exception
        assert result.exit_code == code, result.output
        return json.loads(result.stdout) if "--json" in args and code == 0 else result.output

    return invoke


def test_the_list_says_what_each_proposal_waits_for(state: SqliteStore, run: Run) -> None:
    put(state)
    put(state, "Promoted", id=TWIN, judged=False)
    text = run("proposals")
    assert "ab12ab12" in text
    assert "1 more: anyone" in text
    assert "1.60x (>= 1.50)" in text
    body = run("proposals", "--json")
    assert [p["phase"] for p in body["proposals"]] == ["AwaitingApproval", "Promoted"]
    first = body["proposals"][0]
    assert (first["gate"]["state"], first["risk"]) == ("waiting", "medium")
    assert first["sentence"].startswith("Waiting (policy default/laptop-demo")


def test_a_proposal_that_cannot_be_understood_is_named_and_hides_no_other(
    state: SqliteStore, run: Run
) -> None:
    good = put(state)
    state.add("proposal", "damaged-record", {"nonsense": True}, phase="Scheduled")
    body = run("proposals", "--json")
    assert [row["id"] for row in body["proposals"]] == [good.id]
    assert [row["id"] for row in body["unreadable"]] == ["damaged-record"]
    assert "record-unreadable" in body["unreadable"][0]["message"]
    assert good.id[7:15] in run("proposals")


def test_ended_proposals_are_listed_only_on_request(state: SqliteStore, run: Run) -> None:
    put(state, "Rejected")
    assert "No open proposals" in run("proposals")
    assert "Rejected" in run("proposals", "--all")


def test_show_carries_what_a_person_needs(state: SqliteStore, run: Run) -> None:
    put(state)
    text = run("show", "ab12ab")
    for needed in (
        ARTIFACT,
        "16 <= M <= 512",
        "touches 40%",
        "0 of 1 approvals",
        "retuned approve",
    ):
        assert needed in text
    body = run("show", ID, "--json")
    assert body["proposal"]["artifact"] == ARTIFACT
    assert (body["decisions"], body["orders"]) == ([], [])


def test_show_has_the_prediction_for_live_traffic(state: SqliteStore, run: Run) -> None:
    put(state)
    assert "not predicted: the steps of the server were not observed" in run("show", ID)
    pace = Pace(steps=1000, gpu_bound=800, seen=1000)
    found = forecast(0.4, 2.0, pace=pace, min_effect=0.005)
    state.add("forecast", ID, found.model_dump(mode="json"), phase="current")
    text = " ".join(run("show", ID).split())
    assert "predicted steps take 16.0 % less time (40.0% of GPU time, 2.00x" in text
    assert "80% of 1000 steps" in text
    body = run("show", ID, "--json")["prediction"]
    assert body["prediction"]["gpu_bound"] == 0.8
    assert body["sentence"].startswith("steps take 16.0 % less time")


def test_show_says_before_a_swap_what_its_live_proof_will_do(state: SqliteStore, run: Run) -> None:
    put(state)
    put(state, "Promoted", id=TWIN)
    plan = list(live_proof_words(POLICY.spec.live_proof))
    assert run("show", ID, "--json")["live_proof_plan"] == plan
    assert " ".join(plan[0].split()) in " ".join(run("show", ID).split())
    assert run("show", TWIN, "--json")["live_proof_plan"] == []


def test_show_has_a_compact_picture_of_a_live_proof(state: SqliteStore, run: Run) -> None:
    put(state, "RolledBack")
    shown = proven(1.03, busy=0.006)
    body = {"state": shown.model_dump(mode="json"), "evidence": "sha256:" + "0" * 64}
    state.add("live-proof", ID, body, phase="harms")
    text = run("show", ID)
    assert "harms (slower): steps take" in text
    for name, line in compact_lines(shown):
        assert f"  {name:<10}{line}" in text


def test_a_program_sees_how_many_pairs_a_live_proof_has_so_far(
    state: SqliteStore, run: Run
) -> None:
    put(state, "Proving")
    running = proven(1.03, busy=0.006).model_copy(update={"report": None})
    body = {"state": running.model_dump(mode="json")}
    state.add("live-proof", ID, body, phase="running")
    found = run("show", ID, "--json")["live_proof"]
    assert (found["pairs"], found["report"]) == (running.planned, None)
    assert running.planned > 0


def test_show_repeats_what_devices_did_while_it_was_measured(state: SqliteStore, run: Run) -> None:
    experiment = put(state).experiment
    assert "beside it" not in run("show", ID)
    for moment, words in (("begin", "hot"), ("end", "cool"), ("end", "cold")):
        state.record(
            Event(
                at=datetime.now(UTC),
                kind="experiment",
                id=experiment,
                what="devices",
                who="retuned",
                detail={"sentence": words, "moment": moment},
            )
        )
    said = "as it began, hot; as it ended, cold"
    assert said in run("show", ID)
    assert run("show", ID, "--json")["beside"] == said


def test_an_approval_is_a_record_of_its_own_that_the_gate_counts(
    state: SqliteStore, run: Run
) -> None:
    one = put(state)
    text = run("approve", "ab12", "--comment", "looks right")
    assert ARTIFACT in text
    assert "linear_w8 on local for 16 <= M <= 512" in text
    (decision,) = Approvals(state).decisions(ID)
    assert (decision.user, decision.comment, decision.digest) == ("ada", "looks right", ARTIFACT)
    assert decision.policy_digest == POLICY.digest
    kept = state.get("proposal", ID)
    assert kept is not None
    assert kept.phase == "AwaitingApproval"  # the daemon moves it, not the command
    assert ask(state, one).state is GateState.APPROVED
    assert [(e.what, e.who) for e in state.events(id=ID)] == [("decision-approve", "ada")]


def test_an_approval_names_the_artifact_that_was_seen(state: SqliteStore, run: Run) -> None:
    put(state)
    text = run("approve", "ab12", "--digest", "sha256:" + "99" * 32, code=1)
    assert "look again" in text
    assert Approvals(state).decisions(ID) == ()
    body = run("approve", "ab12", "--digest", ARTIFACT, "--json")
    assert body["decision"]["decision"] == "Approve"
    assert body["doubts"] == []


@pytest.mark.parametrize("phase", ["Promoted", "Rejected", "Expired", "RolledBack"])
def test_only_what_waits_can_be_approved(state: SqliteStore, run: Run, phase: str) -> None:
    put(state, phase)
    assert phase in run("approve", "ab12", code=1)
    assert Approvals(state).decisions(ID) == ()


def test_what_no_policy_has_judged_cannot_be_approved(state: SqliteStore, run: Run) -> None:
    put(state, judged=False)
    assert "has not judged it yet" in run("approve", "ab12", code=1)


@pytest.mark.parametrize("flags", [(), ("--break-glass", "--comment", "now")])
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"policy": None, "policy_digest": None}, "no policy matches, so nothing is swapped"),
        ({"policy": OBSERVER, "policy_digest": OBSERVER.digest}, "Observed only"),
    ],
    ids=["no-policy", "observe-only"],
)
def test_an_approval_without_effect_is_refused_with_the_gates_sentence(
    state: SqliteStore, run: Run, changes: dict[str, Any], says: str, flags: tuple[str, ...]
) -> None:
    one = put(state, judged=False)
    answer = ask(state, one, **changes)
    state.add("gate", one.id, answer.model_dump(mode="json"), phase="current")
    text = run("approve", "ab12", *flags, code=1)
    assert says in text
    assert explain(answer) in text
    assert Approvals(state).decisions(ID) == ()
    run("reject", "ab12")  # what stops is never held back


def test_an_approval_under_a_dry_run_is_kept_and_says_that_nothing_is_swapped(
    state: SqliteStore, run: Run
) -> None:
    spec = POLICY.spec.model_copy(update={"mode": Mode.DRY_RUN})
    dry = POLICY.model_copy(update={"spec": spec})
    one = put(state, judged=False)
    answer = ask(state, one, policy=dry, policy_digest=dry.digest)
    state.add("gate", one.id, answer.model_dump(mode="json"), phase="current")
    assert run("approve", "ab12", "--json")["doubts"] == [
        "the policy is a dry run: your decision is counted, but nothing is swapped"
    ]


def test_who_asked_is_told_that_it_may_not_count(state: SqliteStore, run: Run) -> None:
    one = put(state, requested_by="Ada")
    assert "you requested this swap yourself" in run("approve", "ab12")
    assert ask(state, one).state is GateState.WAITING


def test_one_rejection_ends_it(state: SqliteStore, run: Run) -> None:
    one = put(state)
    run("approve", "ab12")
    run("reject", "ab12", "--comment", "too wide")
    assert ask(state, one).state is GateState.REJECTED


def test_a_swapped_one_is_not_rejected_but_rolled_back(state: SqliteStore, run: Run) -> None:
    put(state, "Promoted")
    assert "retuned rollback" in run("reject", "ab12", code=1)
    body = run("rollback", "ab12", "--reason", "latency", "--json")
    (request,) = state.list("request")
    assert (request.id, request.phase) == (body["request"], "new")
    assert {key: request.body[key] for key in ("what", "target", "who", "reason")} == {
        "what": "rollback",
        "target": ID,
        "who": "ada",
        "reason": "latency",
    }


def test_rollback_by_kernel_takes_the_last_swap(state: SqliteStore, run: Run) -> None:
    put(state, "Promoted", id=TWIN, judged=False)
    put(state, "Watching", judged=False)
    put(state, "Promoted", id="sha256:" + "77" * 32, definition="rmsnorm", judged=False)
    assert run("rollback", "--slot", "linear_w8", "--json")["proposal"] == ID
    put(state, "Rejected", id="sha256:" + "99" * 32, definition="softmax", judged=False)
    assert "nothing is swapped" in run("rollback", "--slot", "softmax", code=1)
    with raises_naming(UsageError, "'sotfmax'", "retuned proposals --all"):
        run("rollback", "--slot", "sotfmax")


def test_why_is_said_by_either_word(state: SqliteStore, run: Run) -> None:
    put(state, "Promoted")
    run("rollback", "ab12", "--comment", "latency")
    assert state.list("request")[0].body["reason"] == "latency"
    put(state, id=TWIN)
    run("reject", "ab13", "--reason", "not now")
    assert state.list("decision")[0].body["comment"] == "not now"
    assert run("freeze", "--comment", "incident", "--json")["freeze"]["reason"] == "incident"
    run("thaw", "-m", "over")


def test_a_freeze_without_a_reason_is_asked_for_one(state: SqliteStore, run: Run) -> None:
    assert "without a reason" in run("freeze")
    assert "without a reason" not in run("freeze", "--reason", "incident")


def test_rollback_is_never_held_back_by_a_freeze(state: SqliteStore, run: Run) -> None:
    put(state, "Promoted")
    run("freeze", "--reason", "incident")
    run("rollback", "ab12")
    assert len(state.list("request", phase="new")) == 1


def test_there_is_nothing_to_take_back_before_a_swap(state: SqliteStore, run: Run) -> None:
    put(state)
    assert "nothing to roll back" in run("rollback", "ab12", code=1)
    with raises_naming(UsageError, "--slot"):
        run("rollback")


@pytest.mark.parametrize(
    "phase", ["AwaitingApproval", "Scheduled", "Canary", "Watching", "Promoted"]
)
def test_an_abort_works_in_every_phase_that_lives(state: SqliteStore, run: Run, phase: str) -> None:
    one = put(state, phase)
    run("abort", "ab12")
    assert [r.body["what"] for r in state.list("request", phase="new")] == ["abort"]
    assert ask(state, one).state is GateState.REJECTED


def test_an_abort_of_what_has_ended_is_refused(state: SqliteStore, run: Run) -> None:
    put(state, "RolledBack")
    assert "nothing to stop" in run("abort", "ab12", code=1)


def test_a_beginning_that_fits_two_names_both(state: SqliteStore, run: Run) -> None:
    put(state)
    put(state, id="sha256:ab12" + "ff" * 30)
    with raises_naming(UsageError, "'ab12'", "ab12ab12ab12ab12, ab12ffffffffffff"):
        run("show", "ab12")


@pytest.mark.parametrize(
    ("given", "says"), [("ab1", "4 characters"), ("ffff", "'ffff'"), ("%%%%", "'%%%%'")]
)
def test_an_id_that_names_nothing_is_wrong_usage(
    state: SqliteStore, run: Run, given: str, says: str
) -> None:
    put(state)
    with raises_naming(UsageError, says):
        run("show", given)


def test_without_a_state_the_command_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RETUNED_CONFIG", raising=False)
    with raises_code(UnreadableInput, "no-state", "retuned run") as caught:
        review.proposals(state_dir=tmp_path / "none")
    assert caught.value.exit_code == 3
    assert not (tmp_path / "none").exists()


def test_a_freeze_stands_at_once_and_thaw_lifts_it(state: SqliteStore, run: Run) -> None:
    one = put(state)
    run("approve", "ab12")
    sign = run("freeze", "--reason", "incident", "--until", "2h", "--json")["freeze"]
    assert sign["user"] == "ada"
    assert ask(state, one).state is GateState.FROZEN
    assert "FROZEN by ada for everything, until 20" in run("proposals")
    assert run("thaw", "--json") == {"thawed": [sign["id"]]}
    assert ask(state, one).state is GateState.APPROVED
    assert "nothing is frozen" in run("thaw", code=1)
    assert [e.what for e in state.events(id=sign["id"])] == ["frozen", "thawed"]


def test_of_several_freezes_one_must_be_named(state: SqliteStore, run: Run) -> None:
    names = [run("freeze", "--json")["freeze"]["id"] for _ in range(2)]
    with raises_naming(UsageError, *names, "--all"):
        run("thaw")
    assert run("thaw", names[0], "--json") == {"thawed": [names[0]]}
    with raises_naming(UsageError, "'freeze-7'", names[1]):
        run("thaw", "freeze-7")
    assert run("thaw", "--all", "--json") == {"thawed": [names[1]]}
    with raises_naming(UsageError, f"'{names[1]}'"):
        run("thaw", names[1])


def test_a_freeze_where_no_state_is_stops_nothing_and_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RETUNED_CONFIG", raising=False)
    with raises_code(UnreadableInput, "no-state", str(tmp_path / "new")) as caught:
        stops.freeze(state_dir=tmp_path / "new")
    assert (caught.value.code, caught.value.exit_code) == ("no-state", 3)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("flags", "scope"),
    [
        ((), "for everything"),
        (("--kernel", "x*"), "for kernels 'x*'"),
        (
            ("--target", "prod", "--kernel", "x*", "--kernel", "y"),
            "for targets 'prod', kernels 'x*' 'y'",
        ),
    ],
)
@pytest.mark.parametrize("end", ["", "2999-01-01T01:00+00:00"])
def test_a_freeze_says_where_for_what_and_until_when(
    state: SqliteStore, run: Run, flags: tuple[str, ...], scope: str, end: str
) -> None:
    ends = "until 2999-01-01 01:00 UTC" if end else "until thawed"
    text = run("freeze", *flags, *(("--until", end) if end else ()))
    assert text.startswith(f"Frozen {scope}, {ends}, in {state.path.parent} (freeze-")
    assert f"FROZEN by ada {scope}, {ends} (freeze-" in run("proposals")
    (line,) = [line for line in run("history").splitlines() if "frozen" in line]
    (sign,) = state.list("freeze")
    assert f"freeze {sign.id}" in line
    assert ("kernels=x*" in line) == ("x*" in scope)


@pytest.mark.parametrize("text", ["yesterday", "2020-01-01T00:00+00:00", "0s", "-3h", "9999d"])
def test_an_end_that_cannot_be_is_wrong_usage(text: str) -> None:
    with raises_naming(UsageError, "--until", repr(text)):
        until(text, now=NOW)


def test_an_end_is_a_span_or_a_time() -> None:
    assert until("90m", now=NOW) == NOW + timedelta(minutes=90)
    assert until("2999-01-01T01:00+01:00", now=NOW) == datetime(2999, 1, 1, tzinfo=UTC)


def test_the_history_is_told_in_order(state: SqliteStore, run: Run) -> None:
    put(state)
    run("approve", "ab12", "--comment", "fine")
    run("reject", "ab12", "--comment", "no")
    body = run("history", "--json")
    assert [line["what"] for line in body["history"]] == ["decision-approve", "decision-reject"]
    assert [line["what"] for line in run("history", "--limit", "1", "--json")["history"]] == [
        "decision-reject"
    ]
    assert "comment=fine" in run("history", "ab12")


def test_names_from_strangers_cannot_write_to_the_terminal(state: SqliteStore, run: Run) -> None:
    put(state, risk_reasons=("\x1b[31mred\x1b]0;title\x07 [bold]x[/bold] \u202eevil",))
    state.record(
        Event(at=NOW, kind="proposal", id=ID, what="noted", who="\x1b[2J", detail={"k": "\r\nx"})
    )
    text = run("show", "ab12")
    assert not set(text) & {"\x1b", "\x07", "\r", "\u202e"}
    assert "[bold]x[/bold]" in text


def test_safe_text_is_cut() -> None:
    assert safe("x" * 500, limit=10) == "x" * 9 + "…"


def test_two_writers_at_once_lose_nothing(state: SqliteStore, run: Run) -> None:
    """A command writes while the daemon's connection is open and writing too."""
    put(state)
    for n in range(5):
        state.add("finding", f"f{n}", {}, phase="final")
        run("reject", "ab12", "--comment", str(n))
    assert len(Approvals(state).decisions(ID)) == 5
    assert len(state.list("finding")) == 5


@pytest.mark.parametrize("command", ["proposals", "show", "history"])
def test_what_is_piped_is_neither_cut_nor_wrapped(
    state: SqliteStore, run: Run, command: str
) -> None:
    kernel = "linear_w8_n2816_k512" + "_x" * 40
    put(state, definition=kernel)
    reason = "because " * 40 + "of that"
    run("approve", "ab12", "--comment", reason)
    text = run(command, *(("ab12",) if command == "show" else ()))
    if command != "history":
        assert kernel in text
    if command != "proposals":
        assert reason in text
        assert ARTIFACT in text
        assert all(line == line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize("what", ["rollback", "abort"])
def test_what_was_asked_for_is_recorded_once_and_shown(
    state: SqliteStore, run: Run, what: str
) -> None:
    put(state, "Promoted")
    first = run(what, "ab12")
    assert "o daemon runs on this state: it happens when one is started" in first
    (request,) = state.list("request", phase="new")
    when = datetime.fromisoformat(request.body["at"]).isoformat(timespec="seconds")
    events = len(state.events(id=ID))
    again = run(what, "ab12")
    assert f"{what.capitalize()} of ab12ab12ab12 already asked by ada at {when}" in again
    body = run(what, "ab12", "--json")
    assert (body["request"], body["already_asked"]) == (request.id, True)
    assert body["daemon_runs"] is False
    assert len(state.list("request")) == 1
    assert len(state.events(id=ID)) == events
    assert len(Approvals(state).decisions(ID)) == (1 if what == "abort" else 0)
    for command in (("proposals",), ("show", "ab12")):
        assert f"{what} asked by ada at {when}" in run(*command)
    (listed,) = run("proposals", "--json")["proposals"]
    assert listed["asked_for"] == run("show", "ab12", "--json")["asked_for"]
    assert [each["what"] for each in listed["asked_for"]] == [what]


def test_a_rollback_that_is_under_way_needs_no_second_request(state: SqliteStore, run: Run) -> None:
    put(state, "RollbackFailed")
    assert "RollbackFailed" in run("rollback", "ab12", code=1), "it is repeated until it works"
    assert state.list("request") == []


@pytest.mark.parametrize("command", ["approve", "reject", "abort", "rollback"])
def test_beside_a_daemon_it_is_done_at_its_next_look(
    state: SqliteStore, run: Run, command: str
) -> None:
    put(state, "Promoted" if command == "rollback" else "AwaitingApproval")
    with only_one(state.path.parent):
        text = " ".join(run(command, "ab12").split())
    assert "he daemon does it at its next look" in text
    assert "no daemon" not in text
