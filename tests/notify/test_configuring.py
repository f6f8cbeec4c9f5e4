"""Settings of channels: half of one is refused, and a secret never is a setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.expect import raises_code

from retuned.errors import UnreadableInput, UsageError
from retuned.notify.settings import incoming_of, read_secret, sinks_of
from retuned.settings import Settings


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "s3cret")
    monkeypatch.setenv("A_HOOK", "https://hooks.slack.com/services/T/B/x")


def made(**values: Any) -> Settings:
    return Settings(**values)


def test_nothing_set_is_no_channel() -> None:
    assert sinks_of(made()) == ()
    assert incoming_of(made()) is None


def test_all_of_them_at_once() -> None:
    settings = made(
        slack_token="env:A_SECRET",
        slack_channel="C012AB3CD",
        slack_signing_secret="env:A_SECRET",
        slack_team="T012AB3CD",
        slack_users="U012=ada,U034=bob",
        channels_listen="127.0.0.1:0",
        alertmanager_url="http://127.0.0.1:9093",
        webhook_url="https://hooks.example/in?team=a",
        webhook_secret="env:A_SECRET",
        alertmanager_webhook_token="env:A_SECRET",
    )
    names = [sink.name for sink in sinks_of(settings)]
    assert names == ["slack", "alertmanager", "webhook"]
    incoming = incoming_of(settings)
    assert incoming is not None
    assert dict(incoming.users) == {"U012": "ada", "U034": "bob"}


@pytest.mark.parametrize(
    "values",
    [
        {"slack_token": "env:A_SECRET"},
        {"slack_channel": "C012"},
        {"slack_token": "env:A_SECRET", "slack_channel": "C012", "slack_webhook": "env:A_HOOK"},
        {"slack_webhook": "env:A_SECRET"},
        {"slack_signing_secret": "env:A_SECRET"},
        {"slack_signing_secret": "env:A_SECRET", "slack_team": "T1", "slack_users": "U1=ada"},
        {"webhook_url": "https://hooks.example"},
        {"webhook_secret": "env:A_SECRET"},
        {"webhook_url": "http://hooks.example", "webhook_secret": "env:A_SECRET"},
        {"alertmanager_token": "env:A_SECRET"},
        {"alertmanager_url": "http://am.example", "alertmanager_token": "env:A_SECRET"},
    ],
)
def test_half_a_channel_or_a_secret_in_the_clear_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        sinks_of(made(**values))


@pytest.mark.parametrize(
    "values",
    [{"channels_listen": "127.0.0.1:0"}, {"alertmanager_webhook_token": "env:A_SECRET"}],
)
def test_listening_to_nobody_or_hearing_nowhere_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        incoming_of(made(**values))


def test_a_secret_is_read_anew_each_time_and_without_its_line_end(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("first\n")
    (sink,) = sinks_of(made(webhook_url="https://hooks.example", webhook_secret=str(file)))
    file.write_text("second\n")
    assert sink.secret() == "second"  # type: ignore[attr-defined]


@pytest.mark.parametrize("content", [b"", b"\n", b"two\nlines", b"caf\xc3\xa9", b"x" * 9000])
def test_what_is_no_secret_is_refused_without_showing_it(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    with pytest.raises(UnreadableInput) as caught:
        read_secret(str(file), what="webhook_secret")
    assert "webhook_secret" in str(caught.value)
    assert "lines" not in str(caught.value)


def test_a_missing_secret_is_found_before_anything_runs(tmp_path: Path) -> None:
    for reference in (str(tmp_path / "none"), "env:NO_SUCH_VARIABLE_HERE", "/dev/zero", "/"):
        with raises_code(UnreadableInput, "no-secret", "webhook_secret"):
            sinks_of(made(webhook_url="https://hooks.example", webhook_secret=reference))


def test_a_channel_does_not_show_its_secret() -> None:
    for sink in sinks_of(
        made(
            alertmanager_url="https://am.example",
            alertmanager_token="env:A_SECRET",
            slack_webhook="env:A_HOOK",
        )
    ):
        assert "s3cret" not in repr(sink)
        assert "services" not in repr(sink)
