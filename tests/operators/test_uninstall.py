"""Every swap is rolled back before an uninstall; the operator of these tests is played."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.fakeapi.access import Identity
from tests.fakeapi.server import FakeApi
from tests.operators import examples

from retuned.api.proposal import ProposalPhase
from retuned.clock import FakeClock
from retuned.errors import TemporaryError
from retuned_operator.kube.client import Api
from retuned_operator.kube.errors import NotFound
from retuned_operator.kube.resources import PROPOSALS, TARGETS
from retuned_operator.kube.watch import Listing
from retuned_operator.manifests.roles import watching_rules
from retuned_operator.uninstall import PATIENCE, REASON, rollback_all

ACCOUNT = "system:serviceaccount:retuned:operator"


@pytest.fixture
def fake() -> Iterator[FakeApi]:
    with FakeApi(namespaces=("serving", "other")) as made:
        made.access.add("operator", Identity(name=ACCOUNT, groups=("system:authenticated",)))
        made.access.bind(ACCOUNT, watching_rules())
        yield made


def swap(fake: FakeApi, name: str, phase: ProposalPhase, *, namespace: str = "serving") -> None:
    body = examples.a_swap()
    about = {"name": name, "namespace": namespace}
    fake.make(PROPOSALS, {**body, "metadata": about}, phase=str(phase))


def target(fake: FakeApi, *active: str) -> None:
    entries: list[dict[str, Any]] = [
        {
            "kernel": "rmsnorm_h512",
            "digest": examples.ARTIFACT,
            "epoch": 1,
            "proposal": name,
            "since": "2026-01-01T00:00:00Z",
        }
        for name in active
    ]
    body = examples.a_target()
    about = {"name": "chat", "namespace": "serving"}
    fake.make(TARGETS, {**body, "metadata": about}, activeKernels=entries)


class PlayedOperator:
    """Rolls back what is requested, a look later; time passes while the command waits."""

    def __init__(self, fake: FakeApi, *, works: bool = True) -> None:
        self.fake, self.works, self.clock = fake, works, FakeClock(examples.NOW)
        self.aborted: list[str] = []

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for body in self.fake.api().list(PROPOSALS).items:
            abort = body["spec"].get("abort", {})
            name = body["metadata"]["name"]
            if not abort.get("requested") or name in self.aborted or not self.works:
                continue
            assert abort["reason"] == REASON
            self.aborted.append(name)
            self.fake.api().patch_status(
                PROPOSALS,
                name,
                status={"phase": "RolledBack"},
                namespace=body["metadata"]["namespace"],
            )


def run(fake: FakeApi, operator: PlayedOperator, *namespaces: str) -> int:
    return rollback_all(
        fake.api("operator"), namespaces=namespaces, clock=operator.clock, wait=operator.wait
    )


def test_what_servers_run_is_rolled_back_and_nothing_else_is_touched(fake: FakeApi) -> None:
    target(fake, "kept")
    swap(fake, "kept", ProposalPhase.PROMOTED)
    swap(fake, "replaced", ProposalPhase.PROMOTED)
    swap(fake, "proving", ProposalPhase.PROVING)
    swap(fake, "waiting", ProposalPhase.AWAITING_APPROVAL)
    swap(fake, "ended", ProposalPhase.ROLLED_BACK)
    operator = PlayedOperator(fake)
    assert run(fake, operator) == 2
    assert sorted(operator.aborted) == ["kept", "proving"]
    phases = {
        each["metadata"]["name"]: each["status"]["phase"]
        for each in fake.api().list(PROPOSALS).items
    }
    assert phases["waiting"] == "AwaitingApproval"
    assert phases["replaced"] == "Promoted"


def test_without_a_swap_nothing_is_waited_for(fake: FakeApi) -> None:
    operator = PlayedOperator(fake)
    assert run(fake, operator) == 0
    assert operator.clock.now() == examples.NOW


def test_a_cluster_that_does_not_know_the_kinds_any_more_has_no_swap(
    fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object, **__: object) -> Listing:
        raise NotFound("no such kind", status=404, reason="NotFound")

    monkeypatch.setattr(Api, "list", unknown)
    assert run(fake, PlayedOperator(fake)) == 0


def test_only_the_namespaces_of_the_release_are_rolled_back(fake: FakeApi) -> None:
    swap(fake, "theirs", ProposalPhase.CANARY, namespace="other")
    swap(fake, "ours", ProposalPhase.CANARY)
    operator = PlayedOperator(fake)
    assert run(fake, operator, "serving") == 1
    assert operator.aborted == ["ours"]


def test_a_swap_that_stays_in_force_stops_the_uninstall_by_name(fake: FakeApi) -> None:
    swap(fake, "stuck", ProposalPhase.ROLLBACK_FAILED)
    operator = PlayedOperator(fake, works=False)
    with pytest.raises(TemporaryError) as raised:
        run(fake, operator)
    assert "serving/stuck (RollbackFailed)" in str(raised.value)
    assert operator.clock.now() - examples.NOW >= PATIENCE
