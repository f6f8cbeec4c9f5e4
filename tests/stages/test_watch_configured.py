"""A row of a file is watched by what the server's own lookup says: nothing else is to be had."""

from __future__ import annotations

from typing import Any

import pytest

from retuned.contract import Guard
from retuned.stages.swap import SwapKind, SwapOrder
from retuned.stages.watch import WatchAction, WatchReason, WatchSample, WatchSettings, assess

SETTINGS = WatchSettings(min_s=10.0, engage_within_s=30.0)
BEHIND = {"processes": 2, "idle_processes": 1}
ARTIFACT = "sha256:" + "a" * 64
ORDER = SwapOrder(
    id="x", kind=SwapKind.SWAP, proposal="p", target="t", definition="d", artifact=ARTIFACT,
    previous=None, guard=Guard(), epoch=4,
)  # fmt: skip


def sample(**said: Any) -> WatchSample:
    nothing = dict.fromkeys(
        (
            *("swapped_launches", "fallback_launches", "shadow_checks", "shadow_mismatches"),
            *("shadow_nonfinite", "worst_ratio", "errors"),
        ),
        0,
    )
    return WatchSample.model_validate(
        {
            "definition": "d",
            "artifact": ARTIFACT,
            "epoch": 4,
            **nothing,
            "configured": "engaged",
            "members": ("1.sock",),
        }
        | said
    )


@pytest.mark.parametrize(
    ("said", "seconds", "action", "reason"),
    [
        ({}, 1.0, WatchAction.WAIT, WatchReason.TOO_EARLY),
        ({}, 10.0, WatchAction.KEEP, WatchReason.CONFIGURED),
        ({"configured": "needs-restart"}, 9e9, WatchAction.WAIT, WatchReason.NEEDS_RESTART),
        ({"tripped": "file-picks-differ"}, 99.0, WatchAction.ROLLBACK, WatchReason.TRIPPED),
        (BEHIND, 1.0, WatchAction.WAIT, WatchReason.NO_SAMPLE),
        (
            BEHIND,
            31.0,
            WatchAction.ROLLBACK,
            WatchReason.NOT_ENGAGED,
        ),
        ({"configured": None}, 31.0, WatchAction.WAIT, WatchReason.TOO_FEW_CHECKS),
        ({"epoch": 3}, 31.0, WatchAction.ROLLBACK, WatchReason.NOT_ENGAGED),
    ],
)
def test_a_row_is_kept_once_every_process_has_picked_it_for_long_enough(
    said: dict[str, Any], seconds: float, action: WatchAction, reason: WatchReason
) -> None:
    report = assess(ORDER, [sample(**said)], seconds_since_commit=seconds, settings=SETTINGS)
    assert (report.action, report.reason) == (action, str(reason))


def test_a_sample_of_counted_launches_looks_as_it_always_did() -> None:
    assert "configured" not in sample(configured=None).model_dump(mode="json")
    assert sample().model_dump(mode="json")["configured"] == "engaged"
