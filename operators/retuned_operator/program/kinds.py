"""Kinds of records in the operator's store that several modules read."""

from __future__ import annotations

PROFILE = "pod-profile"
"""A window that a pod told."""
DRIFT = "pod-drift"
"""A drift report that a pod told."""
HYPOTHESIS = "hypothesis"
"""A belief."""
SOLUTION = "solution"
"""A variant that an experiment won."""
