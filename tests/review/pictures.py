"""Write the pictures of docs/on-call.md: ``python -m tests.review.pictures``."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import FloatRect, Page
from tests.fakeapi.access import Identity
from tests.fakeapi.server import FakeApi
from tests.operators.kubectl.conftest import PEOPLE, ROLES, Cluster
from tests.operators.review.conftest import ACCOUNT, GROUPS, Looking
from tests.operators.review.paging import Paged, paged
from tests.review.browsing import PHONE, Served, approve, chromium, served
from tests.review.conftest import NOON, ROOT, TWO_PEOPLE
from tests.review.test_browser import furnished

from retuned.clock import FakeClock
from retuned.contract import digest_of
from retuned.ports import Event
from retuned.stages.proposal import Proposal
from retuned.stages.swap import order_rollback, order_swap
from retuned.standalone.review_source import key_of
from retuned.store.lock import only_one
from retuned_operator.kube.informer import key_of as key_in
from retuned_operator.kube.resources import PROPOSALS, Resource
from retuned_operator.manifests.roles import reviewing_rules, speaking_rules, watching_rules
from retuned_operator.schema import SwapProposal, read

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FOLDER = ROOT / "docs" / "pictures"
_SIZE = {"width": 1000, "height": 800}
_HISTORY = (
    (0, "proposed", "retuned"),
    (2, "alert-firing", "alertmanager"),
    (9, "decision-approve", "grace"),
    (56, "decision-approve", "ada"),
    (57, "swapped", "retuned"),
    (58, "alert-resolved", "alertmanager"),
    (117, "promoted", "retuned"),
)
"""Minutes, codes and people of a swap that went well."""


def shot(page: Page, path: str, name: str, *, high: int, begin: str = "") -> None:
    """Take a part of a page, from an element's top on."""
    page.goto(path)
    top = 0.0
    if begin:
        box = page.locator(begin).bounding_box()
        assert box is not None, begin
        top = box["y"] - 16
    size = page.viewport_size
    assert size is not None, "a window has a size"
    clip: FloatRect = {"x": 0, "y": top, "width": size["width"], "height": high}
    page.screenshot(path=str(FOLDER / f"{name}.png"), full_page=True, clip=clip)


def one_machine(there: Served) -> None:
    """Take those of one machine."""
    there.site.policy = TWO_PEOPLE
    there.site.propose(phase="RollbackFailed", target="batch")
    addresses = furnished(there)
    grace = there.page("grace", "sre-oncall")
    grace.goto(addresses["PROPOSAL"])
    approve(grace, why="numbers hold on our own replay")
    for one in there.site.proposed[-3:]:
        there.site.judge(one)
    page = there.page("ada", "gpu-platform", size=_SIZE)
    shot(page, "/", "review-inbox", high=600)
    shot(page, addresses["PROPOSAL"], "review-proposal", high=1110)
    shot(page, addresses["PROPOSAL"], "review-source", high=800, begin="#changes")
    shot(page, addresses["PROPOSAL"], "review-evidence", high=1120, begin="#worth")
    shot(page, "/savings", "review-savings", high=800)
    dark = there.page("ada", size=_SIZE, dark=True)
    shot(dark, addresses["WINDOW"], "review-drift", high=900)
    phone = there.page("ada", "gpu-platform", size=PHONE, dark=True)
    shot(phone, addresses["PROPOSAL"], "review-phone", high=1180)
    done = swaps(there, there.site.proposed[-3:])
    shot(page, f"/proposals/{key_of(done.id)}", "review-history", high=400, begin="#history")
    shot(page, "/swaps", "review-swaps", high=480)


def swaps(there: Served, ran: Sequence[Proposal]) -> Proposal:
    """Let some be swapped in, and the first be taken back; return one that was kept."""
    store, clock = there.site.store, there.site.clock
    orders = [order_swap(one, epoch=epoch) for epoch, one in enumerate(ran, 2)]
    for order in (*orders, order_rollback(orders[0], epoch=len(ran) + 2)):
        store.add("order", order.id, order.model_dump(mode="json"), phase="done")
        clock.advance(47 * 60.0)
    kept = ran[1]
    for minutes, what, who in _HISTORY[1:]:
        at = kept.created_at + timedelta(minutes=minutes)
        store.record(Event(at=at, kind="proposal", id=kept.id, what=what, who=who))
    clock.advance(600.0)
    return kept


WAITING = (
    ("serving/chat", "rmsnorm_n4096", "AwaitingApproval", 1.62, 40),
    ("serving/code", "silu_mul_n11008", "AwaitingApproval", 1.18, 300),
    ("serving/chat-eu", "rope_d128", "Canary", 1.31, 150),
    ("batch/embeddings", "layernorm_n1024", "Scheduled", 1.44, 800),
    ("batch/rerank", "softmax_n512", "RollbackFailed", 1.27, 1_500),
)
"""Target, kernel, phase, speedup and age in minutes of what a cluster's inbox has."""


class Aged(Looking):
    """A cluster whose proposals are as old as their first step: a played one makes them all now."""

    def dated(self, resource: Resource, index: str, word: str) -> Mapping[str, str]:
        return {
            key_in(body): body["status"]["history"][0]["at"]
            for body in self.by(resource, index, word)
        }


def cluster(folder: Path, browser: Browser) -> None:
    """Take that of a cluster."""
    with FakeApi(namespaces=("serving", "batch")) as fake:
        fake.access.add("operator", Identity(name=ACCOUNT, groups=("system:authenticated",)))
        fake.access.bind(ACCOUNT, [*reviewing_rules(), *watching_rules()])
        fake.access.bind(ACCOUNT, speaking_rules(tuple(PEOPLE), GROUPS))
        fake.access.bind("gpu-platform", ROLES["retuned-approver"])
        policy = Cluster(fake, folder).policy()
        gate = {
            "state": "waiting",
            "reason": "missing-approvals",
            "sentence": "Waiting (policy serving/prod, gate two): 1 of 2 approvals.",
            "policy": "serving/prod",
            "policyDigest": policy.stage_policy().digest,
            "required": 2,
            "received": ["grace"],
            "missing": 1,
            "missingFrom": ["group gpu-platform"],
        }
        with paged(folder, browser, api=fake.api("operator"), caches=Aged(fake)) as there:
            for each in WAITING:
                propose(fake, there, *each, gate=gate)
            page = there.page("ada", size=_SIZE)
            shot(page, "/", "review-cluster", high=700)


def propose(
    fake: FakeApi,
    there: Paged,
    target: str,
    kernel: str,
    phase: str,
    speedup: float,
    minutes: int,
    *,
    gate: dict[str, object],
) -> None:
    """Let a proposal of a cluster stand somewhere since some time."""
    namespace, _, name = target.partition("/")
    began = datetime.now(UTC) - timedelta(minutes=minutes)
    spec = there.won(speedup=speedup) | {
        "targetRef": {"name": name},
        "kernel": kernel,
        "expiresAt": (began + timedelta(hours=72)).isoformat(),
    }
    step = {"from": "Approved", "to": phase, "at": began.isoformat(), "by": "retuned"}
    metadata = {"name": f"swp-{digest_of([target])[7:27]}", "namespace": namespace}
    body = {"metadata": metadata, "spec": spec}
    if phase != "AwaitingApproval":
        gate = gate | {"state": "approved", "received": ["ada", "grace"], "missing": 0}
    read(SwapProposal, fake.make(PROPOSALS, body, phase=phase, history=[step], gate=gate))


def main() -> None:
    """Write them all."""
    FOLDER.mkdir(exist_ok=True)
    with chromium() as browser, tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        with (
            served(folder, FakeClock(NOON), browser) as there,
            only_one(folder / "state"),
        ):
            one_machine(there)
        cluster(folder, browser)


if __name__ == "__main__":
    main()
