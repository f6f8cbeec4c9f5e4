"""The comparison of the device's memory around a capture finds what a capture changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from benchmarks.gpu.vllm_live import beside

from retuned.runtime.tunables.records import Capture


class Sets:
    """Captures sizes, and writes one number into a cache if it is told to."""

    def __init__(self, cache: torch.Tensor | None) -> None:
        self.cache = cache

    def capture(self, _: object, captures: list[Capture], **__: Any) -> list[int]:
        if self.cache is not None:
            self.cache[1, 2] = 7
        return [each.size for each in captures]


@pytest.mark.parametrize("writes", [False, True])
def test_a_written_cache_is_found_once(monkeypatch: pytest.MonkeyPatch, writes: bool) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    whole = torch.zeros(2, 4, dtype=torch.int64)
    runner = SimpleNamespace(
        kv_caches=[whole, [whole[1:], torch.zeros(3)]],  # layers may share memory
        req_states=SimpleNamespace(length=SimpleNamespace(gpu=torch.ones(2))),
    )
    found = beside._captured(
        Sets(whole if writes else None),
        SimpleNamespace(model_runner=runner),
        [Capture(size=4, axes={})],
    )
    assert (found["captured"], found["caches"]) == ([4], 3)
    assert found["bytes"] == 8 * 8 + 3 * 4 + 2 * 4
    byte = 8 * (4 + 2)
    changed = [{"cache": "kv.0", "bytes": 1, "first_and_last": [byte, byte]}]
    assert found["examples"] == (changed if writes else [])
