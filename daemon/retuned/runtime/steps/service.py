"""Operation ``steps`` of the control socket: turn records of steps on and off, and read them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from retuned.runtime.schema import Refused
from retuned.runtime.steps.hook import Steps
from retuned.runtime.steps.log import FIELDS, LEASE_S

MAX_RECORDS = 4096
"""Records of one answer: about 400 KB."""
_MAX_INDEX = 2**53


class StepService:
    """Answers for the steps of this process.

    Parameters
    ----------
    facts
        Returns more facts for each answer, such as the process's rank.
    """

    def __init__(self, steps: Steps, *, facts: Callable[[], Mapping[str, Any]] = dict) -> None:
        self._steps, self._facts = steps, facts

    def operations(self) -> dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]]:
        return {"steps": self.answer}

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return records, and begin or end the recording if ``record`` is given.

        Every request extends a recording by `LEASE_S`. With ``launches`` the answer has the times
        of launches of the slot that is proven, since the recording began.

        Raises
        ------
        Refused
            ``bad-request``.
        """
        record = request.get("record")
        if record is not None and not isinstance(record, bool):
            raise Refused("bad-request", detail="'record' must be a boolean")
        since = _number(request, "since", most=_MAX_INDEX)
        limit = _number(request, "limit", most=MAX_RECORDS)
        log = self._steps.log
        log.renew()
        if record is True:
            self._steps.follow()
            self._steps.launches.forget()
            log.start()
        elif record is False:
            log.stop()
        return {
            "hook": self._steps.hook(),
            "recording": log.recording,
            "fault": log.fault,
            "arm": log.arm,
            "overlapping": self._steps.overlapping,
            "fields": list(FIELDS),
            **log.take(since=since, limit=MAX_RECORDS if limit is None else limit),
            "lease_s": LEASE_S,
            "now_s": round(time.monotonic(), 6),
            **({"launches": self._steps.launches.rows()} if request.get("launches") else {}),
            **self._facts(),
        }


def _number(request: Mapping[str, Any], name: str, *, most: int) -> int | None:
    value = request.get(name)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= most:
        raise Refused("bad-request", detail=f"'{name}' must be a number of at most {most}")
    return value
