"""The same coins in each run: real ones show an effect that is none in one of a hundred proofs."""

from __future__ import annotations

import random
from types import ModuleType, SimpleNamespace

import pytest

from retuned.node import live_proof, sentinel


@pytest.fixture(autouse=True)
def coins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let live proofs of this process draw their coins from one seed."""
    same_coins(monkeypatch, live_proof, sentinel)


def same_coins(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
    """Let modules draw their coins from one seed."""
    chance = random.Random(11)
    fake = SimpleNamespace(SystemRandom=lambda: chance)
    for module in modules:
        monkeypatch.setattr(module, "secrets", fake)
