"""People's side of the store: words once given stay, and who gives them is asked of the system."""

from __future__ import annotations

import os
import pwd
from datetime import UTC, datetime, timedelta

import pytest
from tests.expect import raises_code

from retuned.errors import UnreadableInput
from retuned.stages.gate import DecisionKind, SwapDecision, TuningFreeze
from retuned.store.approvals import Approvals, _mapped, local_identity
from retuned.store.memory import MemoryStore

NOW = datetime(2026, 11, 18, 10, 0, tzinfo=UTC)
DIGEST = "sha256:" + "a" * 64


def word(user: str = "ada", **changes: object) -> SwapDecision:
    values: dict[str, object] = {
        "proposal": "p",
        "digest": DIGEST,
        "decision": DecisionKind.APPROVE,
        "user": user,
        "at": NOW,
    }
    return SwapDecision.model_validate(values | changes)


def test_a_word_comes_back_as_it_was_given_with_a_line_in_the_trail() -> None:
    store = MemoryStore()
    approvals = Approvals(store)
    assert approvals.give(word(groups=("sre",), comment="fine"))
    assert approvals.decisions("p") == (word(groups=("sre",), comment="fine"),)
    assert approvals.decisions("q") == ()
    (event,) = store.events(id="p")
    assert (event.what, event.who, event.detail["digest"]) == ("decision-approve", "ada", DIGEST)


def test_the_very_same_word_is_kept_once() -> None:
    store = MemoryStore()
    approvals = Approvals(store)
    assert approvals.give(word())
    assert not approvals.give(word())
    assert approvals.give(word(at=NOW + timedelta(seconds=1)))
    assert len(approvals.decisions("p")) == len(store.events()) == 2


def test_a_word_that_cannot_be_read_is_never_passed_over() -> None:
    store = MemoryStore()
    store.add("decision", "d", {"proposal": "p", "decision": "Maybe"}, phase="given")
    with raises_code(UnreadableInput, "record-unreadable", "decision d", "SwapDecision"):
        Approvals(store).decisions("p")


def test_a_freeze_stands_until_its_end_or_its_lifting() -> None:
    store = MemoryStore()
    approvals = Approvals(store)
    for id, until in (("a", None), ("b", NOW + timedelta(hours=1))):
        assert approvals.freeze(TuningFreeze(id=id, user="ada", at=NOW, until=until))
    assert not approvals.freeze(TuningFreeze(id="a", user="eve", at=NOW))
    assert [f.id for f in approvals.freezes(now=NOW)] == ["a", "b"]
    assert [f.id for f in approvals.freezes(now=NOW + timedelta(hours=1))] == ["a"]
    assert approvals.thaw("a", who="grace", at=NOW)
    assert not approvals.thaw("a", who="grace", at=NOW)
    assert [f.id for f in approvals.freezes(now=NOW)] == ["b"]


def test_a_freeze_that_cannot_be_read_is_never_passed_over() -> None:
    store = MemoryStore()
    store.add("freeze", "f", {"id": "f"}, phase="active")
    with raises_code(UnreadableInput, "record-unreadable", "freeze f", "TuningFreeze"):
        Approvals(store).freezes(now=NOW)


def test_a_request_is_new_until_the_daemon_has_done_it() -> None:
    store = MemoryStore()
    approvals = Approvals(store)
    first = approvals.request("rollback", target="p", who="ada", at=NOW, reason="slow")
    assert approvals.request("rollback", target="p", who="ada", at=NOW, reason="slow") == first
    (stored,) = store.list("request", phase="new")
    assert stored.id == first
    assert [e.what for e in store.events(id="p")] == ["rollback-requested"]


def test_who_i_am_is_asked_of_the_system_not_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("USER", "LOGNAME", "SUDO_USER"):
        monkeypatch.setenv(name, "grace")
    assert local_identity({}).user == pwd.getpwuid(os.getuid()).pw_name


def test_a_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getuid", lambda: 3_999_999_999)
    monkeypatch.setattr("os.getgroups", lambda: [3_999_999_998])
    who = local_identity({})
    assert who.user == "uid:3999999999"
    assert "gid:3999999998" in who.groups


@pytest.fixture
def by_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root, by sudo from an ordinary user that this machine knows."""
    daemon = pwd.getpwnam("daemon")
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setenv("SUDO_USER", daemon.pw_name)
    monkeypatch.setenv("SUDO_UID", str(daemon.pw_uid))


def test_root_by_sudo_is_the_person_behind_it_with_that_persons_groups(by_sudo: None) -> None:
    who = local_identity({"user:daemon": "sre-oncall", "root": "sre-leads"})
    assert who.user == "daemon"
    assert "sre-oncall" in who.groups
    assert "root" not in who.groups


@pytest.mark.parametrize(
    "changes",
    [{"SUDO_UID": "4294967"}, {"SUDO_USER": "nobody-of-this-name"}, {"SUDO_USER": ""}],
    ids=["another-id", "unknown", "empty"],
)
def test_a_sudo_that_does_not_fit_together_is_not_believed(
    by_sudo: None, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str]
) -> None:
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    assert local_identity({}).user == "root"


def test_only_root_may_name_another_by_sudo(by_sudo: None, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = pwd.getpwnam("nobody")
    monkeypatch.setattr(os, "getuid", lambda: nobody.pw_uid)
    assert local_identity({}).user == "nobody"


def test_policy_groups_come_from_groups_and_users() -> None:
    mapping = {"wheel": "sre-oncall", "user:ada": "sre-leads", "other": "gpu-platform"}
    assert _mapped("ada", ["wheel", "users"], mapping) == (
        "sre-leads",
        "sre-oncall",
        "users",
        "wheel",
    )
    assert _mapped("eve", ["users"], mapping) == ("users",)
