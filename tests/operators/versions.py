"""Versions of Kubernetes that everything must be valid for: from 1.29 to the newest known."""

from __future__ import annotations

import kubernetes_validate

_NEWEST = int(kubernetes_validate.latest_version().split(".")[1])
VERSIONS = tuple(f"1.{minor}" for minor in range(29, _NEWEST + 1))
