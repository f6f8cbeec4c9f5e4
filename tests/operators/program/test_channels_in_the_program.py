"""Channels of the whole program, against a fake API server, with the chart's rights."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tests.fakeapi.server import FakeApi
from tests.notify.heard import listening
from tests.operators import examples
from tests.operators.program.test_program import (
    _authority,
    asked,
    eventually,
    fake,
    running,
    settings,
)

from retuned_operator.kube.resources import PROPOSALS
from retuned_operator.settings import Settings, load_settings

__all__ = ["fake", "settings"]
_WAITING = 'retuned_channel_messages_waiting{channel="webhook"} 0.0'
_REFUSED = 'retuned_channel_arrivals_total{channel="alertmanager",outcome="refused"} 1.0'
pytestmark = pytest.mark.slow


def test_who_leads_tells_and_hears_by_the_certificate_of_the_agent_api(
    fake: FakeApi, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del settings  # its environment and its file are what counts
    with listening() as ear:
        for name, text in (("hook", "a-secret"), ("alerts", "a-token")):
            (tmp_path / name).write_text(text)
        file = tmp_path / "operator.yaml"
        channels: dict[str, Any] = {
            "webhookUrl": ear.url,
            "webhookSecret": str(tmp_path / "hook"),
            "alertmanagerWebhookToken": str(tmp_path / "alerts"),
        }
        file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"channels": channels}))
        monkeypatch.setenv("RETUNED_OPERATOR_CHANNELS_PORT", "0")
        with running(fake, load_settings(file), []) as operator:
            port = eventually(lambda: operator.channels_port)
            authority = ssl.create_default_context(cafile=_authority(fake, tmp_path))
            answer = httpx.post(
                f"https://localhost:{port}/alertmanager", verify=authority, timeout=60.0
            )
            assert answer.status_code == 401
            eventually(lambda: _WAITING in asked(operator, "/metrics").text)
            assert _REFUSED in asked(operator, "/metrics").text
            swap = examples.a_swap(expiresAt="2099-01-01T00:00:00Z")
            fake.make(PROPOSALS, swap, phase="RollbackFailed")  # no pod is left that could not
            eventually(lambda: "rolled-back" in [took.body["event"] for took in ear.took])
