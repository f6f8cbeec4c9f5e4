"""What the review page knows of one machine besides its store: its place, its GPUs, its server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from retuned.contract import Solution
from retuned.errors import TemporaryError
from retuned.ports import Clock
from retuned.stages.proposal import Proposal
from retuned.stages.watch import WatchSample
from retuned.web.records import Roofs

_ASKED_AGAIN_S = 1.0
_AWAY_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What the page knows besides the store."""

    place: str
    """What this installation is called."""
    folder: Path
    """The state folder."""
    gpus: int
    """Accelerators that the server uses."""
    usd_per_gpu_hour: float | None
    """Price of an hour; None where nobody said."""
    incumbent: Callable[[str], Solution | None] = lambda _: None
    """Variant that the server comes with, by kernel; None where nobody knows."""
    roofs: Callable[[Proposal, Sequence[Mapping[str, int]], str], Roofs | None] = (
        lambda _proposal, _shapes, _arch: None
    )
    """What physics allows some shapes on an architecture; None where nobody knows."""
    samples: Callable[[], Sequence[WatchSample]] = lambda: ()
    """What the server counts, per slot."""


class ServerStatusCache:
    """Asks the server at most once a second, however many look, and leaves one alone that is away.

    Parameters
    ----------
    ask
        What is asked; it may take seconds where the server hangs.
    clock
        Time.
    """

    def __init__(self, ask: Callable[[], Sequence[WatchSample]], *, clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._again_s = float("-inf")
        self._said: Sequence[WatchSample] = ()

    def __call__(self) -> Sequence[WatchSample]:
        """Return the newest answer; nothing where there was none."""
        now_s = self._clock.monotonic_s()
        if now_s < self._again_s:
            return self._said
        self._again_s = now_s + _ASKED_AGAIN_S
        try:
            self._said = self._ask()
        except TemporaryError:
            self._said, self._again_s = (), now_s + _AWAY_S
        return self._said
