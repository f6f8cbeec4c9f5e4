"""The program itself: a process beside a runtime, an agent API over TLS, kills, and its memory."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.test_swapper import Rehearsed, definition
from tests.operators.agent_api.agent_world import POD, TARGET, AgentWorld, token_of
from tests.sidecar.sidecar_world import FIRST, PodWorld, back, swap
from tests.sidecar.table_world import NAME, ROWS, kernel, text_of
from tests.sidecar.table_world import swap as table_swap

from retuned.api.agent import DriftPost, Hello, OrderDone, Outcome, ProfileReport, WatchPost, skew_s
from retuned.runtime import attach
from retuned.runtime.core.active_order import Swapped
from retuned.runtime.native.cpu import LOADERS
from retuned.runtime.tunables.records import digest_of_text
from retuned.runtime_client.client import RuntimeSocket
from retuned.store.artifact_folder import MANIFEST, bundle_of, sign_artifact
from retuned_operator.agent_api import AgentSettings, Said

MAX_RSS_MIB = 105
"""The budget is 120; what is below is room for other versions of what it loads."""
_FORBIDDEN = (
    *("torch", "triton", "kubernetes", "starlette", "uvicorn", "retuned_operator"),
    *("typer", "pydantic_settings", "asyncio", "apscheduler", "opentelemetry", "cryptography"),
    *("jinja2", "ml_dtypes", "numpy.ma", "numpy.random"),
    *("retuned.catalog", "retuned.lab", "retuned.lifting", "retuned.cli.commands"),
    *("retuned.notify", "retuned.standalone", "retuned.review", "retuned.demo"),
)
"""What a sidecar does not load at its start: of the last rows some come with the work that needs
them, and none costs a server that has no such work its memory."""


class PodOfProcesses:
    """A server in this process, its sidecar as a process, and the operator over TLS."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.agent = AgentWorld(folder / "agent", settings=AgentSettings(per_s=1e6, burst=10**9))
        self.signing = PodWorld(folder / "signing")
        self.agent.fleet.signs_with = self.signing.notary.public_hex()
        self.agent.fleet.artifacts[FIRST] = self.signing.signed(FIRST)
        self.traces = folder / "traces"
        self.traces.mkdir()
        self.runtime = attach(server="test", socket_dir=folder / "s")
        self.slot = self.runtime.slot(definition("gemm"), original=lambda x: x)
        self.sockets = RuntimeSocket(folder / "s", timeout_s=120.0)
        self.token = folder / "token"
        self.token.write_text(token_of(POD))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        said = {
            "AGENT_URL": self.agent.url,
            "TOKEN_FILE": self.token,
            "CA_FILE": self.agent.authority.certificate,
            "POD_NAMESPACE": POD.namespace,
            "POD_NAME": POD.name,
            "POD_UID": POD.uid,
            "SOCKET_DIR": self.folder / "s",
            "WATCH_DIRS": self.traces,
            "STATE_DIR": self.folder / "state",
            "WINDOW_S": 2,
            "SETTLE_S": 0,
            "OBSERVE_POLL_S": 0.5,
            "REPORT_POLL_S": 0.5,
            "BASELINE_WINDOWS": 2,
            "DETECTOR_PRESET": "demo",
            "METRICS_PORT": 0,
        }
        kept = {k: v for k, v in os.environ.items() if not k.startswith("RETUNED_")}
        environment = kept | {f"RETUNED_{name}": str(value) for name, value in said.items()}
        log = (self.folder / "sidecar.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from retuned.cli import main; main()", "sidecar"],
            env=environment,
            stderr=log,
        )
        log.close()
        return self.process

    def said(self, kind: type[Said]) -> list[Any]:
        return [said for _, said in self.agent.inbox.taken if isinstance(said, kind)]

    def outcomes(self) -> list[tuple[str, Outcome]]:
        return [(said.order, said.outcome) for said in self.said(OrderDone)]

    def active(self) -> str | None:
        return self.sockets.slots()[0].active

    def until(self, true: Callable[[], bool], within_s: float = 240.0) -> None:
        deadline = time.monotonic() + within_s
        while not true():
            if time.monotonic() > deadline:
                log = (self.folder / "sidecar.log").read_text()[-4_000:]
                pytest.fail(f"not in time; the sidecar said:\n{log}")
            time.sleep(0.05)

    def trace(self, number: int, *, kernel: str = "gemm_kernel", launches: int = 20_000) -> None:
        """Write a trace as rocprofv3 does."""
        header = (
            "Kind,Agent_Id,Queue_Id,Stream_Id,Thread_Id,Dispatch_Id,Kernel_Id,Kernel_Name,"
            "Correlation_Id,Start_Timestamp,End_Timestamp,LDS_Block_Size,Scratch_Size,VGPR_Count,"
            "Accum_VGPR_Count,SGPR_Count,Workgroup_Size_X,Workgroup_Size_Y,Workgroup_Size_Z,"
            "Grid_Size_X,Grid_Size_Y,Grid_Size_Z"
        )
        rows = [
            f'KERNEL_DISPATCH,1,1,0,1,{n},1,"{kernel}_{n % 97}",{n},{number + n * 10_000},'
            f"{number + n * 10_000 + 5_000},0,0,8,0,16,256,1,1,{256 * (1 + n % 31)},1,1"
            for n in range(launches)
        ]
        partial = self.traces / f".{number}.tmp"
        partial.write_text("\n".join([header, *rows]) + "\n")
        partial.rename(self.traces / f"{number}_kernel_trace.csv")

    def peak_mib(self) -> float:
        assert self.process is not None, "started"
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(each for each in text.splitlines() if each.startswith("VmHWM"))
        return int(line.split()[1]) / 1024

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(200.0)
        self.runtime.close()
        self.agent.close()
        self.signing.ctx.store.close()


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PodOfProcesses]:
    monkeypatch.setitem(LOADERS, "rehearsed", Rehearsed)
    found = PodOfProcesses(tmp_path)
    yield found
    found.close()


def test_a_swap_through_the_whole_pod_survives_kills_of_the_sidecar(pod: PodOfProcesses) -> None:
    process = pod.start()
    pod.until(lambda: bool(pod.said(Hello)))
    forward = swap()
    pod.agent.order(forward)
    pod.until(lambda: (forward.id, Outcome.DONE) in pod.outcomes())
    assert pod.active() == FIRST
    in_force = pod.slot.table.in_force
    assert in_force is not None
    process.send_signal(signal.SIGKILL)
    process.wait(200.0)
    assert pod.active() == FIRST, "the server serves on without it"
    told = len(pod.said(WatchPost))
    pod.start()
    pod.until(lambda: len(pod.said(WatchPost)) > told + 1)
    assert set(pod.outcomes()) == {(forward.id, Outcome.DONE)}
    assert pod.slot.table.in_force is in_force, "it may be told twice, and is done once"
    way_back = back(forward, epoch=3)
    pod.agent.order(way_back)
    pod.until(lambda: (way_back.id, Outcome.DONE) in pod.outcomes())
    assert pod.active() is None


def test_a_table_through_the_whole_pod_survives_kills_of_the_sidecar(pod: PodOfProcesses) -> None:
    tunable, text = kernel(), text_of(32)
    pod.runtime.tune_tables()
    pod.runtime._host.tunables.registry.add(tunable)
    tunable.sized({"rows": ROWS})
    folder = pod.folder / "table"
    folder.mkdir()
    (folder / MANIFEST).write_text(text)
    digest = digest_of_text(text)
    about = {"artifact": digest, "definition": NAME, "target": TARGET}
    sign_artifact(folder, notary=pod.signing.notary, **about)
    pod.agent.fleet.artifacts[digest] = bundle_of(folder)
    forward = table_swap(digest)
    process = pod.start()
    pod.until(lambda: bool(pod.said(Hello)))
    pod.agent.order(forward)
    pod.until(lambda: (forward.id, Outcome.DONE) in pod.outcomes())
    assert tunable.table is not None
    assert tunable.table.digest == digest
    process.send_signal(signal.SIGKILL)
    process.wait(200.0)
    table, told = tunable.table, len(pod.said(WatchPost))
    pod.start()
    pod.until(lambda: len(pod.said(WatchPost)) > told + 1)
    assert tunable.table is table
    assert NAME in {slot.definition for slot in pod.said(WatchPost)[-1].slots}
    rollback = back(forward, epoch=3)
    pod.agent.order(rollback)
    pod.until(lambda: (rollback.id, Outcome.DONE) in pod.outcomes())
    assert tunable.table is None


def test_harm_with_the_operator_away_is_undone_and_told_when_it_is_back(
    pod: PodOfProcesses,
) -> None:
    pod.start()
    forward = swap()
    pod.until(lambda: bool(pod.said(Hello)))
    pod.agent.order(forward)
    pod.until(lambda: (forward.id, Outcome.DONE) in pod.outcomes())
    pod.agent.inbox.full = True  # it answers, and keeps nothing
    in_force = pod.slot.table.in_force
    assert isinstance(in_force, Swapped)
    in_force.trip("shadow-mismatch", "as the test wished")
    pod.until(lambda: pod.sockets.slots()[0].epoch == 3)
    assert pod.active() is None
    assert len(pod.outcomes()) == 1
    pod.agent.inbox.full = False
    pod.until(lambda: (forward.id, Outcome.ROLLED_BACK) in pod.outcomes())


def test_with_clocks_a_day_apart_a_tampered_artifact_is_refused_and_a_sound_one_taken(
    pod: PodOfProcesses,
) -> None:
    pod.agent.clock.advance((datetime.now(UTC) - pod.agent.clock.now()).total_seconds() - 86_400)
    sound = pod.agent.fleet.artifacts[FIRST]
    manifest = json.loads(sound["artifact.json"])
    manifest["binary_sha256"] = hashlib.sha256(b"other code").hexdigest()
    tampered = {"kernel.so": b"other code", "artifact.json": json.dumps(manifest).encode()}
    pod.agent.fleet.artifacts[FIRST] = {**sound, **tampered}
    pod.start()
    pod.until(lambda: bool(pod.said(Hello)))
    ahead_s = skew_s(pod.said(Hello)[0], now=pod.agent.clock.now())
    assert 86_000 < ahead_s < 87_000
    refused, taken = swap(), swap(epoch=3, proposal="p2")
    pod.agent.order(refused)
    pod.until(lambda: (refused.id, Outcome.REFUSED) in pod.outcomes())
    (said,) = (each for each in pod.said(OrderDone) if each.order == refused.id)
    assert said.reason == "signature-mismatch"
    assert pod.active() is None, "the original serves on"
    pod.agent.fleet.artifacts[FIRST] = sound
    pod.agent.order(taken)
    pod.until(lambda: (taken.id, Outcome.DONE) in pod.outcomes())
    assert pod.active() == FIRST


def test_the_sidecar_stays_small_and_empties_its_folder(pod: PodOfProcesses) -> None:
    process = pod.start()
    pod.until(lambda: bool(pod.said(Hello)))
    for number in range(8):
        pod.trace(number)
        time.sleep(1.0)
    pod.trace(9, kernel="attention_kernel")
    pod.until(lambda: not list(pod.traces.glob("*.csv")))
    pod.until(lambda: len(pod.said(ProfileReport)) >= 3)
    peak = pod.peak_mib()
    print(f"peak {peak:.1f} MiB")  # noqa: T201 - shown by -rP
    assert peak < MAX_RSS_MIB, f"{peak:.1f} MiB"
    process.send_signal(signal.SIGTERM)
    assert process.wait(200.0) == 0
    assert all(said.target == TARGET for said in pod.said(ProfileReport) + pod.said(DriftPost))


def test_what_a_sidecar_does_not_need_at_its_start_is_not_loaded() -> None:
    code = (
        "import sys, retuned.cli.sidecar, retuned.sidecar.assembly, retuned.sidecar.main\n"
        f"print([m for m in {_FORBIDDEN!r} if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_sidecar_without_its_pods_name_says_what_is_missing(tmp_path: Path) -> None:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RETUNED_")}
    found = subprocess.run(
        [sys.executable, "-c", "from retuned.cli import main; main()", "sidecar"],
        env=kept | {"RETUNED_STATE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 2
    assert "agent_url" in found.stderr
