"""What a server's process says of itself, read as a stranger's answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retuned.errors import TemporaryError
from retuned.stages.verdict import ServerEnvironment

_RETRY_S = 1.0
_FACTS = ("cpu", "device", "device_name", "driver", "runtime", "torch", "triton")
_LONGEST = 200
"""Longest fact that is taken, characters."""
_MOST = 64
"""Most switches that are taken."""


def server_environment(answer: Mapping[str, Any]) -> ServerEnvironment:
    """Read an answer to ``hello``; what an older runtime leaves out is not known.

    Raises
    ------
    TemporaryError
        If it says nothing of the kind.
    """
    facts = answer.get("environment")
    if not isinstance(facts, Mapping):
        raise TemporaryError("the runtime does not say what it runs on", delay_s=_RETRY_S)
    switches = facts.get("numerics")
    rows = list(switches.items())[:_MOST] if isinstance(switches, Mapping) else []
    said = {name: str(facts.get(name, ""))[:_LONGEST] for name in _FACTS}
    return ServerEnvironment(
        process=str(answer.get("pid"))[:_LONGEST],
        cpu=said["cpu"],
        device=said["device"],
        device_name=said["device_name"],
        driver=said["driver"],
        runtime=said["runtime"],
        torch=said["torch"],
        triton=said["triton"],
        numerics={str(name)[:_LONGEST]: str(value)[:_LONGEST] for name, value in rows},
    )
