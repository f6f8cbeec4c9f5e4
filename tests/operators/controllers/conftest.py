"""Fixtures of the tests of controllers."""

from __future__ import annotations

from tests.unsynced import unsynced

__all__ = ["unsynced"]
