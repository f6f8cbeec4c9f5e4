"""The operator's page over HTTPS, with the proxy's headers, for real browsers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.operators.examples import a_proposal
from tests.operators.review.conftest import GROUPS, SECRET, proxied
from tests.plane.control_plane import free_ports
from tests.plane.pki import Authority
from tests.review.browsing import Windows
from tests.review.conftest import SOURCE, evidence_of, solution

from retuned.clock import SystemClock
from retuned.ports import Clock
from retuned.store.envelopes import seal
from retuned.store.keys import FakeNotary
from retuned.store.memory import MemoryStore
from retuned_operator.controllers.ports import Caches
from retuned_operator.kube.client import Api
from retuned_operator.kube.https_server import HttpsServer, tls_context
from retuned_operator.review.settings import review_app, review_settings
from retuned_operator.schema import proposal_spec
from retuned_operator.schema.objects import write
from retuned_operator.store.kernels import CatalogKernels
from retuned_operator.store.reports import SOLUTION
from retuned_operator.store.review import StoredReviews

if TYPE_CHECKING:
    from playwright.sync_api import Browser

REWRITTEN = SOURCE.replace("1e-6", "1e-5").replace("tl.rsqrt(", "1.0 / tl.sqrt(")


@dataclass
class Paged(Windows):
    """The page of one cluster."""

    store: MemoryStore = field(kw_only=True)
    """The operator's."""

    def won(self, *, speedup: float = 1.6, **changes: Any) -> dict[str, Any]:
        """Keep a variant with its evidence; return the spec of the proposal of it."""
        incumbent, plan = solution("stock", num_warps=4), "sha256:" + "77" * 32
        candidate = solution("rewritten", source=REWRITTEN, num_warps=8)
        now = datetime.now(UTC)
        document = evidence_of(candidate, incumbent, plan=plan, speedup=speedup, at=now)
        for each in (candidate, incumbent):
            self.store.add(SOLUTION, each.digest, each.model_dump(mode="json"), phase="final")
        sealed = seal(document.model_dump_json().encode(), notary=FakeNotary())
        record = a_proposal(
            definition=candidate.definition,
            artifact=candidate.digest,
            baseline=incumbent.digest,
            guard=document.verdict.guard,
            speedup=document.verdict.speedup,
            evidence=self.store.put_blob(sealed),
            experiment=plan,
            created_at=now,
            expires_at=now + timedelta(hours=20),
        )
        return (
            write(proposal_spec(record, target="chat", gpu_model="H200", experiment="exp-1"))
            | changes
        )


@contextmanager
def paged(
    folder: Path,
    browser: Browser,
    *,
    api: Api,
    caches: Caches,
    place: str = "prod-eu",
    clock: Clock | None = None,
) -> Iterator[Paged]:
    """Serve the page as the operator does, by a certificate of the test's own."""
    (port,) = free_ports(1)
    (folder / "proxy-secret").write_text(SECRET)
    settings = review_settings(
        {
            "hosts": [f"127.0.0.1:{port}"],
            "place": place,
            "secretFile": str(folder / "proxy-secret"),
            "groups": list(GROUPS),
            "gpuHourUsd": 2.5,
        }
    )
    store, pair = MemoryStore(), Authority(folder / "pki").server("page", hosts=("127.0.0.1",))
    shelf = StoredReviews(store, FakeNotary(), kernels=CatalogKernels())
    app = review_app(settings, api, caches=caches, shelf=shelf, clock=clock or SystemClock())
    context = tls_context()
    context.load_cert_chain(pair.certificate, pair.key)
    server = HttpsServer(
        app, context=context, host="127.0.0.1", port=port, name="review page", max_at_once=64
    )
    server.start()
    windows = Paged(
        address=f"https://127.0.0.1:{port}",
        chromium=browser,
        headers=lambda user, _: dict(proxied(user)),
        store=store,
    )
    try:
        yield windows
    finally:
        windows.close()
        server.stop()
