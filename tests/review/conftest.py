"""A store with proposals as the daemon writes them, and the page over it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.standalone.proofs import interval, proof

from retuned.clock import FakeClock
from retuned.contract import (
    Digest,
    Environment,
    Language,
    Solution,
    SourceFile,
    TrustClass,
    Workload,
)
from retuned.ports import Event
from retuned.review.app import Pages
from retuned.review.ports import Authenticator, RequestInfo
from retuned.review.records import Person, Roof, Roofs
from retuned.review.requests import Guard as PageGuard
from retuned.review.requests import refused
from retuned.review.settings import Site
from retuned.stages.drift import DriftAction, DriftCode, DriftReason, DriftReport
from retuned.stages.gate import KernelTuningPolicy, decide
from retuned.stages.profile import Signature, SignatureStat, WorkloadProfile
from retuned.stages.proposal import Proposal, Risk
from retuned.stages.swap import order_swap
from retuned.stages.trace import ShapeSource
from retuned.stages.verdict import EvidenceDocument
from retuned.standalone.review_page import StoreDeciding
from retuned.standalone.review_source import HostFacts, StoreReview, key_of
from retuned.store.approvals import Approvals
from retuned.store.envelopes import seal
from retuned.store.keys import FakeNotary
from retuned.store.sqlite import SqliteStore

ROOT = Path(__file__).resolve().parents[2]
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
HOST = "127.0.0.1:9476"
H200 = Environment(
    arch="sm_90", driver="570.1", runtime="CUDA 12.8", compiler="triton 3.6", torch="2.9"
)
SHAPES = (16, 64, 256, 1024)


def policy(*, groups: tuple[str, ...] = (), **approvals: Any) -> KernelTuningPolicy:
    if groups:
        approvals["from"] = [{"group": group} for group in groups]
    return KernelTuningPolicy.model_validate(
        {
            "apiVersion": "retuned.dev/v1alpha1",
            "kind": "KernelTuningPolicy",
            "metadata": {"name": "prod", "namespace": "serving"},
            "spec": {
                "priority": 1,
                "mode": "Enforce",
                "validation": {"minSpeedup": 1.02, "confidence": 0.99},
                "gates": [{"name": "people", "approvals": {"required": 1} | approvals}],
                "breakGlass": {"enabled": True, "group": "sre-leads"},
            },
        }
    )


TWO_PEOPLE = policy(
    required=2,
    distinctGroups=True,
    groups=("gpu-platform", "sre-oncall"),
)

SOURCE = """\
import triton
import triton.language as tl


@triton.jit
def rmsnorm(x, w, y, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < N
    values = tl.load(x + row * N + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 0) / N + 1e-6)
    weight = tl.load(w + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * N + at, values * scale * weight, mask=inside)
"""


def solution(name: str, *, source: str = SOURCE, **params: int) -> Solution:
    return Solution(
        name=name,
        definition="rmsnorm_n4096",
        language=Language.TRITON,
        entry="rmsnorm",
        sources=(SourceFile(path="rmsnorm.py", content=source),),
        structure="one-row",
        params={"BLOCK": 4096, "num_warps": 4, **params},
        grid=("M",),
        trust=TrustClass.PARAMETERS,
    )


def evidence_of(
    candidate: Solution, incumbent: Solution, *, plan: Digest, speedup: float, at: datetime
) -> EvidenceDocument:
    """Return what a lab on an H200 proves of a candidate."""
    return proof(
        candidate,
        incumbent=incumbent.digest,
        plan=plan,
        speedup=interval(speedup),
        at=at,
        environment=H200,
        workloads=tuple(
            Workload(definition="rmsnorm_n4096", axes={"M": m}, weight=4000.0 / m) for m in SHAPES
        ),
    )


@dataclass
class Somebody:
    """The door of a test: whoever the test says."""

    person: Person | None = field(default_factory=lambda: Person(user="ada", groups=()))
    visits: list[RequestInfo] = field(default_factory=list)

    def who(self, visit: RequestInfo) -> Person:
        self.visits.append(visit)
        if self.person is None:
            raise refused("not-known", "nobody knows you")
        return self.person


@dataclass
class Site9476:
    """One installation with its page."""

    store: SqliteStore
    notary: FakeNotary
    clock: FakeClock
    door: Somebody
    app: Any
    policy: KernelTuningPolicy = field(default_factory=policy)
    number: int = 0
    proposed: list[Proposal] = field(default_factory=list)

    def propose(
        self,
        *,
        phase: str = "AwaitingApproval",
        speedup: float = 1.6,
        candidate: Solution | None = None,
        incumbent: Solution | None = None,
        **changes: Any,
    ) -> Proposal:
        """Write a proposal with its experiment, evidence and the gate's answer."""
        self.number += 1
        plan = f"sha256:{self.number:064x}"
        incumbent = incumbent or solution("stock", num_warps=4)
        candidate = candidate or solution(f"variant-{self.number}", num_warps=8 + self.number)
        document = evidence_of(
            candidate, incumbent, plan=plan, speedup=speedup, at=self.clock.now()
        )
        assert document.verdict.speedup is not None
        evidence = self.store.put_blob(
            seal(document.model_dump_json().encode(), notary=self.notary)
        )
        for each in (candidate, incumbent):
            body = {"solution": each.model_dump(mode="json")}
            self.store.add("finding", f"{plan}/{each.digest}", body, phase="final")
        values: dict[str, Any] = {
            "id": f"sha256:{0xAB12 << 240 | self.number:064x}",
            "target": "chat",
            "definition": "rmsnorm_n4096",
            "artifact": candidate.digest,
            "baseline": incumbent.digest,
            "guard": document.verdict.guard,
            "speedup": document.verdict.speedup,
            "share": 0.4,
            "expected_saving": 0.13,
            "risk": Risk.MEDIUM,
            "risk_reasons": ("touches 40% of kernel time", "first swap of this kernel"),
            "trust": TrustClass.PARAMETERS,
            "evidence": evidence,
            "experiment": plan,
            "requested_by": "retuned",
            "created_at": self.clock.now() - timedelta(minutes=10),
            "expires_at": self.clock.now() + timedelta(hours=24),
        }
        one = Proposal(**(values | changes))
        self.store.add("proposal", one.id, one.model_dump(mode="json"), phase=phase)
        self.store.record(
            Event(at=one.created_at, kind="proposal", id=one.id, what="proposed", who="retuned")
        )
        self.judge(one)
        self.proposed.append(one)
        return one

    def window(self, m: int, *, kernel: str = "rmsnorm", detected: bool = False) -> str:
        """Write a window of traffic, an hour after the one before, and its drift report."""
        self.clock.advance(3600)
        start_ns = int(self.clock.now().timestamp() * 1e9)
        stats = tuple(
            SignatureStat(
                signature=Signature(kernel=name, dims=((m, 4096),), dtypes=("bfloat16",)),
                launches=1000,
                gpu_time_ns=int(share * 300e9 * 0.6),
                median_ns=10_000,
                shape_source=ShapeSource.CAPTURE,
                shape_confidence=1.0,
            )
            for name, share in (
                ((kernel, 0.4), ("gemm_bf16", 0.5), ("rope", 0.1))
                if not detected
                else ((kernel, 0.55), ("gemm_bf16", 0.38), ("rope", 0.07))
            )
        )
        profile = WorkloadProfile(
            window_start_ns=start_ns,
            window_ns=300 * 10**9,
            observed_ns=300 * 10**9,
            stats=stats,
            counted=True,
        )
        report = DriftReport(
            detected=detected,
            action=DriftAction.RETUNE if detected else DriftAction.NONE,
            reasons=(
                DriftReason(
                    code=DriftCode.NEW_SIGNATURE,
                    kernel=kernel,
                    share_before=0.0,
                    share_after=0.4,
                    detail=f"M={m} is new",
                ),
            )
            if detected
            else (),
            distance=0.31 if detected else 0.02,
            cusum=9.0 if detected else 0.4,
            new_share=0.4 if detected else 0.0,
            window_start_ns=start_ns,
            sentence=f"{kernel} now runs at M={m}" if detected else "nothing new",
        )
        id = f"{start_ns:020d}.0"
        self.store.add("window", id, {"profile": profile.model_dump(mode="json")}, phase="judged")
        phase = "explained" if detected else "noted"
        self.store.add("drift", id, report.model_dump(mode="json"), phase=phase)
        return id

    def spent(self, one: Proposal) -> None:
        """Write what a swap ran and its experiment took, and its order, as the daemon does."""
        for month, hours in (("2026-01", 20), ("2026-02", 140), ("2026-03", 60)):
            body = ran_body(one, month=month, gpu_ns=int(hours * 3.6e12))
            body["server_ns"] = int(2.5 * hours * 3.6e12)
            self.store.add("savings", f"{one.id}/{month}", body, phase="current")
        took = {"target": "chat", "definition": one.definition, "months": {"2026-01": 9_000.0}}
        self.store.add("spending", one.experiment, took, phase="current")
        order = order_swap(one, epoch=1)
        self.store.add("order", order.id, order.model_dump(mode="json"), phase="done")

    def judge(self, one: Proposal, *, policy: KernelTuningPolicy | None = None) -> str:
        """Ask the gate, as the daemon does at its next look; return where it stands."""
        asked = policy or self.policy
        answer = decide(
            one,
            policy=asked,
            policy_digest=asked.digest,
            decisions=Approvals(self.store).decisions(one.id),
            freezes=(),
            env="prod",
            now=self.clock.now(),
        )
        body = answer.model_dump(mode="json")
        if not self.store.add("gate", one.id, body, phase="current"):
            self.store.advance("gate", one.id, expect="current", to="current", body=body)
        return answer.state.value

    def browser(self, user: str = "", *groups: str) -> Browser:
        """Return a browser with its own cookies; the door lets it in as `user`."""
        if user:
            self.door.person = Person(user=user, groups=groups)
        return Browser(self)


def ran_body(one: Proposal, *, month: str, gpu_ns: int) -> dict[str, Any]:
    """What the daemon writes of a swap and a month."""
    return {
        "proposal": one.id,
        "target": one.target,
        "definition": one.definition,
        "speedup": one.speedup.model_dump(mode="json"),
        "month": month,
        "gpu_ns": gpu_ns,
        "windows": 9,
    }


class Browser:
    """What a browser does without a script: loads pages, and sends the forms that are on them."""

    def __init__(self, site: Site9476) -> None:
        self.http = httpx.Client(
            transport=_Wired(site.app), base_url=f"http://{HOST}", follow_redirects=False
        )

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.http.get(path, **more)

    def form(self, page: httpx.Response) -> dict[str, str]:
        """Return the hidden fields of the first form."""
        found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page.text)
        fields: dict[str, str] = {}
        for name, value in found:
            fields.setdefault(name, value)
        return fields

    def say(
        self, one: Proposal, act: str, *, headers: dict[str, str] | None = None, **fields: str
    ) -> httpx.Response:
        """Load the page and send its form."""
        path = f"/proposals/{key_of(one.id)}"
        found = self.form(self.get(path)) | {"act": act} | fields
        return self.post(path, found, headers=headers)

    def post(
        self, path: str, fields: dict[str, str], *, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        sent = {"origin": f"http://{HOST}", "sec-fetch-site": "same-origin"} | (headers or {})
        return self.http.post(path, data=fields, headers=sent)


class _Wired(httpx.BaseTransport):
    """Runs an ASGI application for a client that waits."""

    def __init__(self, app: Any) -> None:
        self._inner = httpx.ASGITransport(
            app=app, client=("127.0.0.1", 40_000), raise_app_exceptions=False
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        async def answered() -> httpx.Response:
            answer = await self._inner.handle_async_request(request)
            body = await answer.aread()
            return httpx.Response(answer.status_code, headers=answer.headers, content=body)

        request.read()
        return asyncio.run(answered())


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOON)


@pytest.fixture
def site(tmp_path: Path, clock: FakeClock) -> Iterator[Site9476]:
    yield from made(tmp_path, clock)


def made(
    folder: Path,
    clock: FakeClock,
    *,
    hosts: frozenset[str] = frozenset({HOST}),
    door: Authenticator | None = None,
) -> Generator[Site9476, None, None]:
    store = SqliteStore(folder / "state", clock=clock)
    notary, somebody = FakeNotary(), Somebody()
    machine = HostFacts(
        place="chat on node-7",
        folder=folder / "state",
        gpus=8,
        usd_per_gpu_hour=2.5,
        roofs=lambda _proposal, shapes, _arch: Roofs(
            shapes=tuple(
                Roof(axes=axes, flops=4.0 * axes["M"] * 4096, moved_bytes=4.0 * axes["M"] * 4096)
                for axes in shapes
            ),
            gflops=66_900.0,
            gbytes_per_s=3_350.0,
        ),
    )
    pages = Pages(
        StoreReview(store, notary, machine=machine, clock=clock),
        StoreDeciding(store, clock=clock),
        door or somebody,
        site=Site(hosts=hosts, key=b"k" * 32),
        clock=clock,
    )
    app = PageGuard(pages.app(), hosts=hosts)
    yield Site9476(store=store, notary=notary, clock=clock, door=somebody, app=app)
    store.close()
