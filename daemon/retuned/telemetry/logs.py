"""Logs of the programs that run on: lines on stderr, for people or for machines."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Literal

from retuned.telemetry.spans import spoken
from retuned.text import lines

_SPOKEN = "retuned_frames"
_AGAIN_S = 60.0
_MOST = 512
"""Sentences that are remembered."""
_OWN = frozenset({"time", "level", "logger", "message", "exception"})


class SpanFilter(logging.Filter):
    """Notes with each record what was being done: stage, trace, proposal."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let it pass, with a note."""
        setattr(record, _SPOKEN, spoken())
        return True


class RateLimitFilter(logging.Filter):
    """Lets the same sentence pass once a minute, with how often it was left out; errors always.

    A program that looks every few seconds finds the same thing missing each time.

    Parameters
    ----------
    now_s
        Time that only goes forward, seconds.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now_s = now_s
        self._lock = threading.Lock()
        self._said: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this line may pass; the number of those that did not is added to it."""
        if record.levelno >= logging.ERROR:
            return True
        text = record.getMessage()
        key = record.name, text
        with self._lock:
            last_s, left_out = self._said.get(key, (-_AGAIN_S, 0))
            now_s = self._now_s()
            if now_s - last_s < _AGAIN_S:
                self._said[key] = last_s, left_out + 1
                return False
            self._said[key] = now_s, 0
            self._said.move_to_end(key)
            while len(self._said) > _MOST:
                self._said.popitem(last=False)
        if left_out:
            record.msg, record.args = f"{text} (repeated {left_out} times)", ()
        return True


class TextLines(logging.Formatter):
    """Lines for people; names from traces and paths are made harmless to a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Render a record."""
        return lines(super().format(record))


class JsonLines(logging.Formatter):
    """One JSON object a line, for machines."""

    def format(self, record: logging.LogRecord) -> str:
        """Render a record."""
        said = getattr(record, _SPOKEN, {})
        body = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: text for name, text in said.items() if name not in _OWN},
        }
        if record.exc_info:
            body["exception"] = self.formatException(record.exc_info)
        return json.dumps(body)


def log_to_stderr(*, level: str, form: Literal["text", "json"]) -> None:
    """Begin to log.

    Parameters
    ----------
    level
        Least severity that is logged, such as ``info``.
    form
        Whether people or machines read it.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonLines()
        if form == "json"
        else TextLines("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    )
    handler.addFilter(SpanFilter())
    handler.addFilter(RateLimitFilter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # a step that still runs when its next turn comes is ordinary: an experiment takes minutes
    logging.getLogger("apscheduler").setLevel(logging.ERROR)
    # a line for each request would be most of a sidecar's log
    logging.getLogger("httpx").setLevel(logging.WARNING)
