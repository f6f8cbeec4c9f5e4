"""The page of ``retuned run`` over a real connection: from drift to a swap that was approved."""

from __future__ import annotations

import json
import os
import pwd
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import typer
from tests.expect import raises_naming
from tests.standalone.local_world import WINNER, World
from typer.testing import CliRunner

from retuned.cli import status
from retuned.errors import TemporaryError, UsageError
from retuned.settings import Settings
from retuned.standalone.context import RecordKind
from retuned.standalone.review_page import served
from retuned.standalone.review_source import key_of
from retuned.store.approvals import Approvals

ME = pwd.getpwuid(os.getuid()).pw_name


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    assert made.unexpected() == 0
    made.store.close()


def settings(world: World, **more: object) -> Settings:
    return Settings(state_dir=world.folder / "state", review="127.0.0.1:0", **more)  # type: ignore[arg-type]


def propose(world: World) -> str:
    for m in (8, 8, 8, 8, 8, 256, 256, 256, 256):
        world.window(m)
        world.loop.turn()
    for _ in range(4):  # what was refined is tried, and what was won is proposed
        world.clock.advance(2.0)
        world.loop.turn()
    (stored,) = world.store.list(RecordKind.PROPOSAL, phase="AwaitingApproval")
    return stored.id


def test_drift_becomes_a_swap_that_the_local_user_approved_on_the_page(world: World) -> None:
    id = propose(world)
    with (
        served(settings(world), world.loop) as address,
        httpx.Client(base_url=address, timeout=60.0) as http,
    ):
        inbox = http.get("/")
        assert inbox.status_code == 200
        assert key_of(id) in inbox.text
        path = f"/proposals/{key_of(id)}"
        page = http.get(path).text
        assert f'<span class="who">{ME}</span>' in page
        fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page))
        fields |= {"act": "approve"}  # there are several forms
        sent = http.post(path, data=fields, headers={"origin": address.rstrip("/")})
        assert sent.status_code == 303
    (word,) = Approvals(world.store).decisions(id)
    assert (word.user, word.channel) == (ME, "review-page")
    for _ in range(3):
        world.clock.advance(2.0)
        world.loop.turn()
    assert world.server.slots()[0].active == WINNER.digest
    with served(settings(world), world.loop) as address:
        swaps = httpx.get(f"{address}swaps", timeout=60.0).text
        assert "swap done" in swaps
        assert httpx.get(f"{address}in-force", timeout=60.0).status_code == 200


def test_a_form_of_an_earlier_start_decides_nothing(world: World) -> None:
    id = propose(world)
    path = f"/proposals/{key_of(id)}"
    with served(settings(world), world.loop) as address:
        first = httpx.get(address.rstrip("/") + path, timeout=60.0)
    fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', first.text))
    with served(settings(world), world.loop) as address:
        answer = httpx.post(
            address.rstrip("/") + path,
            data=fields,
            headers={"origin": address.rstrip("/")},
            cookies=dict(first.cookies),
            timeout=60.0,
        )
    assert answer.status_code == 409
    assert Approvals(world.store).decisions(id) == ()


def test_without_the_setting_nothing_is_served(world: World) -> None:
    with served(Settings(state_dir=world.folder / "state"), world.loop) as address:
        assert address == ""


def test_an_address_that_is_taken_or_open_to_others_ends_the_start(world: World) -> None:
    with served(settings(world), world.loop) as address:
        port = int(address.rstrip("/").rpartition(":")[2])
        taken = Settings(state_dir=world.folder / "state", review=f"127.0.0.1:{port}")
        with pytest.raises(TemporaryError), served(taken, world.loop):
            pass
    wide = Settings(state_dir=world.folder / "state", review="0.0.0.0:0")
    with raises_naming(UsageError, "ssh -L"), served(wide, world.loop):
        pass


def test_the_report_command_says_what_the_page_says(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RETUNED_CONFIG", raising=False)
    monkeypatch.setenv("RETUNED_GPU_HOUR_USD", "2.5")
    propose(world)
    world.loop.observe()
    app = typer.Typer()
    app.command()(status.report)
    folder = ["--state-dir", str(world.folder / "state")]
    body = json.loads(CliRunner().invoke(app, [*folder, "--json"]).stdout)
    (account,) = body["accounts"]
    assert (account["kernel"], account["experiments"]) == ("linear", 2)
    assert body["total"]["spent_gpu_hours"] == account["spent_gpu_hours"] > 0
    assert "rolled back count as nothing saved" in body["method"]
    text = CliRunner().invoke(app, folder, env={"COLUMNS": "200"}).stdout
    assert "GPU-hours on experiments" in text
    assert "$" in text
    none = CliRunner().invoke(app, [*folder, "--month", "1999-01"])
    assert "Nothing was spent" in none.stdout
    wrong = CliRunner().invoke(app, [*folder, "--month", "last"])
    assert isinstance(wrong.exception, UsageError)
