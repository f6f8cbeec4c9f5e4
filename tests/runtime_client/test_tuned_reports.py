"""What processes say of files is a stranger's word: read strictly, the worst of them told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.expect import raises_naming

from retuned.errors import TemporaryError
from retuned.runtime_client.tuned_files import entry_sample, entry_state, merged, process_of

A = "sha256:" + "a" * 64
STANDS = {"definition": "d", "order": "p", "artifact": A, "epoch": 3, "state": "engaged"}


def said(**changed: Any) -> dict[str, Any]:
    servers = {"moe-vllm": "vllm.x", "moe-sglang": "", "aiter": "aiter.y"}
    return {"on": True, "servers": servers, "prepared": ["q"], "files": [STANDS]} | changed


def process(**changed: Any) -> Any:
    return process_of(Path("/s/1.sock"), said(**changed))


def test_what_a_newer_runtime_says_beside_it_is_left_out() -> None:
    found = process(files=[STANDS | {"more": 1}], more=2)
    assert found.formats == {"moe-vllm", "aiter"}, "whose server is there"
    assert found.prepared == {"q"}
    assert (found.entries["d"].artifact, found.entries["d"].epoch) == (A, 3)


@pytest.mark.parametrize(
    "changed",
    [
        {"files": [1]},
        {"files": 7},
        {"files": [STANDS | {"epoch": -1}]},
        {"files": [STANDS | {"artifact": "x"}]},
        {"files": [STANDS | {"state": "fine"}]},
        {"files": [{}]},
        {"servers": None},
        {"prepared": None},
    ],
)
def test_nonsense_is_a_server_to_ask_again(changed: dict[str, Any]) -> None:
    with raises_naming(TemporaryError, "1.sock"):
        process(**changed)


def test_a_process_without_an_order_is_at_its_beginning() -> None:
    state = entry_state("d", process(files=[]), "1")
    assert (state.active, state.epoch, state.tripped, state.counted) == (None, 0, "", False)


def test_a_row_that_was_lost_has_tripped_and_an_original_never_has() -> None:
    lost = process(files=[STANDS | {"state": "lost", "reason": "picks-differ"}])
    assert entry_state("d", lost, "1").tripped == "file-picks-differ"
    back = process(files=[STANDS | {"artifact": None, "state": "lost"}])
    assert entry_state("d", back, "1").tripped == ""


def test_of_several_processes_the_worst_is_told_and_those_behind_are_named() -> None:
    good = entry_sample("d", process(), "1")
    behind = entry_sample("d", process(files=[]), "2")
    waits = entry_sample("d", process(files=[STANDS | {"state": "needs-restart"}]), "3")
    lost = entry_sample("d", process(files=[STANDS | {"state": "lost", "reason": "x"}]), "4")
    assert (merged([good]).configured, merged([good]).idle_processes) == ("engaged", 0)
    assert (merged([good, behind]).epoch, merged([good, behind]).idle_members) == (3, ("2",))
    assert merged([good, waits]).configured == "needs-restart"
    assert merged([good, lost]).tripped == "file-x"
    assert merged([lost, good, behind]).members == ("1", "2", "4")
