"""The whole way with real programs: traffic drifts, somebody is called, looks, and says yes.

Server, client and daemon are those of ``retuned demo``; Prometheus, Alertmanager and Chromium are
Debian's. What is played is the person, and Slack's end of the wire. Dashboards find data for every
panel about what happens. It takes some 90 s.
"""

from __future__ import annotations

import json
import os
import pwd
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.dashboards.panels import queries
from tests.notify.heard import Ear, listening
from tests.notify.monitoring import Monitoring, monitoring_of, of_alerts
from tests.plane.control_plane import free_ports
from tests.review.browsing import NEEDS_CHROMIUM, PATIENCE_MS, approve, chromium, taken
from tests.standalone.kill_processes import below

from retuned.cli import demo
from retuned.demo.options import DemoOptions
from retuned.demo.story import Story
from retuned.store.approvals import Approvals
from retuned.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [
    pytest.mark.browser,
    pytest.mark.monitoring,
    pytest.mark.slow,
    NEEDS_CHROMIUM,
]

ME = pwd.getpwuid(os.getuid()).pw_name
ONCE = {"proposed", "decision-approve", "swapped"}
TOKEN = "a-token-of-alertmanager"
SHORT = {
    "baseline_windows": 4,
    "explain_windows": 2,
    "max_shapes": 3,
    "experiments_per_day": 16,
    "experiment_s_per_day": 700.0,
}
"""What makes the demo's turn shorter: less is learned and measured, nothing is played. Where one
experiment ends without a winner, which happens on a busy machine, there is time for others."""
ABSENT = {
    "retuned_gpu_": "a GPU",
    "retuned_experiment_phases_total": "an operator",
    "retuned_operator_": "an operator",
    "retuned_definition_files": "an operator",
    "retuned_target_": "an operator",
    "retuned_swap_proposal_pods": "pods",
    "retuned_spool_reports": "a sidecar",
    "retuned_clock_skew_seconds": "a sidecar",
    "retuned_orders_total": "a sidecar",
    "retuned_end_to_end_total": "hours",
    "retuned_live_proof_verdicts_total": "a verdict, which takes minutes",
    "retuned_own_overhead_": "a server whose steps are known, and ten minutes",
    "retuned_sentinel_effect_ratio": "a server whose steps are known",
    "retuned_alarm_attributions_total": "an alarm on a server with swaps",
    "retuned_canary_steps_total": "a canary",
    "retuned_freeze_since_timestamp_seconds": "a freeze",
    "retuned_proposals_refused_total": "a win that is not worth it",
    "retuned_channel_oldest_waiting_timestamp_seconds": "a channel that is down",
    "retuned_step_errors_total": "a step that fails",
    "retuned_rollbacks_": "a way back",
    "retuned_pages_total": "a way back that fails",
    "retuned_swap_rollback_failed": "a way back that fails",
    "retuned_swap_paused": "a rollout over pods",
    "retuned_swap_rolled_back": "a way back",
}
"""How metrics begin that this evening has nothing to tell of, and what it would take. Other tests
ask these of stages that do have it."""
ELSEWHERE = {"an operator", "pods", "a rollout over pods", "a sidecar", "a GPU"}
"""What no evening on one machine without a GPU has."""
QUERIES = [each for each in queries() if not any(name in each.expr for name in ABSENT)]
_PATIENCE_S = 600.0
"""For each scene; the lab shares two cores with everything else here."""


@pytest.fixture
def ear() -> Iterator[Ear]:
    with listening() as found:
        yield found


def config(folder: Path, **more: object) -> Path:
    """Write what ``retuned demo`` has its daemon run with, and what people are reached by."""
    path = demo._write_config(folder, demo._POLICY, demo.Device.CPU)
    path.write_text(json.dumps(json.loads(path.read_text()) | SHORT | more))
    return path


def test_dashboards_do_ask_what_the_evening_has_not() -> None:
    every = " ".join(query.expr for query in queries())
    assert [name for name in ABSENT if name not in every] == []
    here = [name for name, what in ABSENT.items() if what not in ELSEWHERE]
    skipped = [query for query in queries() if any(name in query.expr for name in here)]
    assert len(QUERIES) > 2 * len(skipped), "most panels of one machine can be looked at"


class OnCall:
    """Somebody whose phone rings, with a browser."""

    def __init__(self, ear: Ear, there: Monitoring, chromium: Browser) -> None:
        self.ear, self.there, self.chromium = ear, there, chromium
        self.proposal: Mapping[str, Any] = {}
        self.shown = ""
        self.began_s = time.time()
        self.empty = {query.id: query for query in QUERIES}
        """Queries of dashboards that have found nothing at any moment of the evening."""

    def look_at_dashboards(self) -> bool:
        """Ask Prometheus what the dashboards ask it; return whether all was to be seen by now."""
        for id, query in list(self.empty.items()):
            if self.there.ever(query.asked(), since=self.began_s):
                del self.empty[id]
        return not self.empty

    def alerts(self) -> list[Any]:
        """Return what stands in Alertmanager about the proposal."""
        id = self.proposal["id"]
        return [each for each in self.there.alerts() if each["labels"].get("proposal") == id]

    def called(self, proposal: Mapping[str, Any]) -> None:
        """Wait for the alert and for the message, open its link, look and agree."""
        self.proposal = proposal
        alert = self.there.one_alert(proposal=proposal["id"])
        assert alert["labels"]["alertname"] == "RetunedSwapAwaitingApproval"
        assert proposal["artifact"] in alert["annotations"]["approve_command"]
        key = str(proposal["id"]).removeprefix("sha256:").encode()
        self.there.until(lambda: any(key in each.raw for each in self.ear.took), "Slack is told")
        message = next(each for each in self.ear.took if key in each.raw)
        buttons = message.body["blocks"][-1]["elements"]
        (link,) = [each["url"] for each in buttons if each["action_id"] == "retuned-review"]
        with self.chromium.new_context(java_script_enabled=False) as context:
            context.set_default_timeout(PATIENCE_MS)
            page = context.new_page()
            page.goto(link)
            self.shown = page.inner_text("main")
            approve(page)
            taken(page)
            assert page.get_by_text(f"Approved by {ME}").is_visible()

    def rest(self, history: Callable[[], list[str]]) -> None:
        """Wait until the alert has resolved and the proposal's history says so."""
        self.there.until(lambda: not self.alerts(), "the alert resolves")
        over = "alert-resolved"
        self.there.until(lambda: of_alerts(history()) == over, "the history has it")
        self.there.until(
            self.look_at_dashboards,
            "every panel had data, before or after",
            lacking=lambda: [f"{id}: {query.asked()}" for id, query in self.empty.items()],
        )


@contextmanager
def resting(daemon: int) -> Iterator[None]:
    """Let no experiment of a daemon go on: one that won would replace the proposal that waits."""
    over, held = threading.Event(), set[int]()

    def hold() -> None:
        while not over.wait(0.1):
            for each in below(daemon):
                if "retuned.experiment" in each.command and each.pid not in held:
                    held.add(each.pid)
                    with suppress(ProcessLookupError):
                        os.kill(each.pid, signal.SIGSTOP)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for each in below(daemon):
            if each.pid in held:
                os.kill(each.pid, signal.SIGCONT)


class Evening(Story):
    """The demo's story up to the first swap that a person agreed to."""

    def play(self, person: OnCall) -> dict[str, Any]:
        """Tell it; return what the server runs in the kernel's slot, and how its requests went."""
        with ExitStack() as stack:
            self._cast(stack)
            self._learn_baseline()
            self._drift()
            proposal = self._wait(
                "a proposal", lambda: next(iter(self._journal.gated()), None), timeout_s=_PATIENCE_S
            )
            with resting(self._daemon.pid):
                person.called(proposal)
                self._wait("the swap", lambda: self._serving(proposal), timeout_s=_PATIENCE_S)
            active = self._active(str(proposal["definition"]))
            person.rest(lambda: self._words(str(proposal["id"])))
            self._client.say("stop")
            ended = self._client.answer(timeout_s=_PATIENCE_S)
            return {**ended, "active": active, "history": self._words(str(proposal["id"]))}

    def _serving(self, proposal: Mapping[str, Any]) -> bool | None:
        found = self._journal.in_force()
        return any(each["id"] == proposal["id"] for each in found) or None

    def _words(self, id: str) -> list[str]:
        return [event.what for event in self._store.events(id=id)]


@pytest.mark.timeout(1_800)  # minutes where others use the machine, too
def test_a_drift_becomes_an_alert_a_message_a_look_a_yes_a_swap_and_an_alert_that_resolves(
    monitoring: Path, tmp_path: Path, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_HOOK", ear.url)
    monkeypatch.setenv("A_TOKEN", TOKEN)
    metrics, review, heard = free_ports(3)
    path = config(
        tmp_path,
        metrics_port=metrics,
        review=f"127.0.0.1:{review}",
        slack_webhook="env:A_HOOK",
        channels_listen=f"127.0.0.1:{heard}",
        alertmanager_webhook_token="env:A_TOKEN",
    )
    options = DemoOptions(
        folder=tmp_path,
        config=path,
        approve=None,
        measure_s=0.5,
        ramp_s=0.0,
        baseline_timeout_s=_PATIENCE_S,
        drift_timeout_s=_PATIENCE_S,
    )
    hook = f"http://127.0.0.1:{heard}/alertmanager"
    with ExitStack() as stack:
        there = stack.enter_context(
            monitoring_of(monitoring, tmp_path, metrics_port=metrics, webhook=hook, token=TOKEN)
        )
        person = OnCall(ear, there, stack.enter_context(chromium()))
        ended = Evening(options, lambda _: None).play(person)
    proposal, history = person.proposal, ended["history"]
    assert str(proposal["definition"]) in person.shown
    assert (ended["active"], ended["failed"]) == (proposal["artifact"], 0)
    assert ended["ok"] > 0
    assert of_alerts(history) == "alert-resolved"
    assert sorted(what for what in history if what in ONCE) == sorted(ONCE), "each once"
    # alerts and decisions come by ways of their own, and wait for nobody's other
    for earlier, later in (
        ("proposed", "alert-firing"),
        ("proposed", "decision-approve"),
        ("decision-approve", "swapped"),
    ):
        assert history.index(earlier) < history.index(later)
    with closing(SqliteStore(tmp_path / "state")) as store:
        (word,) = Approvals(store).decisions(str(proposal["id"]))
    assert (word.user, word.channel) == (ME, "review-page")
