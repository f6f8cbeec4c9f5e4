"""One turn of the loop by the daemon itself, watched from outside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from benchmarks.gpu.live.stage import Stage


class Turn:
    """Placeholder."""

    def __init__(
        self,
        stage: Stage,
        *,
        say: Callable[[str], None],
        part: Callable[..., Any],
        cores: Sequence[int],
        quick: bool,
        left_s: Callable[[], float],
    ) -> None:
        self._stage = stage

    def run(self, stack: ExitStack) -> None:
        """Nothing yet."""
