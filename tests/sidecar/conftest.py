"""Fixtures of the sidecar's tests."""

from __future__ import annotations

from tests.coins import coins

__all__ = ["coins"]
