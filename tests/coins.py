"""The same coins in each run: real ones show an effect that is none in one of a hundred proofs."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from retuned.node import live_proof, sentinel


@pytest.fixture(autouse=True)
def coins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let live proofs of this process draw their coins from one seed."""
    chance = random.Random(11)
    fake = SimpleNamespace(SystemRandom=lambda: chance)
    for module in (live_proof, sentinel):
        monkeypatch.setattr(module, "secrets", fake)
