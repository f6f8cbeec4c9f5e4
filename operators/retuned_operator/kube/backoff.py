"""How long to wait before the next try: longer each time, and never all at the same moment."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Delays that double and are spread.

    A delay is drawn evenly between half of the bound and the bound, so that many who failed at the
    same moment do not come back at the same moment.
    """

    first_s: float = 0.5
    """Bound of the first delay, seconds."""
    most_s: float = 30.0
    """Bound of every delay, seconds."""

    def __post_init__(self) -> None:
        if not 0 < self.first_s <= self.most_s:
            raise ValueError(f"0 < {self.first_s} <= {self.most_s} does not hold")

    def delay_s(self, failures: int, *, draw: Callable[[], float] = random.random) -> float:
        """Return seconds to wait after so many failures in a row.

        Parameters
        ----------
        failures
            From 1.
        draw
            Even between 0 and 1.

        Examples
        --------
        >>> [Backoff().delay_s(n, draw=lambda: 1.0) for n in (1, 2, 3, 99)]
        [0.5, 1.0, 2.0, 30.0]
        >>> Backoff().delay_s(1, draw=lambda: 0.0)
        0.25
        """
        doublings = min(max(failures - 1, 0), 60)
        bound = min(self.first_s * 2.0**doublings, self.most_s)
        return bound * (0.5 + draw() / 2)
