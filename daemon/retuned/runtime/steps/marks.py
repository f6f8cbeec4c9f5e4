"""Steps that a server marks itself: ``with retuned.runtime.step(...)`` around its forward pass."""

from __future__ import annotations

import os
import threading
from types import TracebackType

from retuned.runtime.steps.composition import Composition
from retuned.runtime.steps.hook import Steps

_FOLLOWED: tuple[Steps, ...] = ()
_LOCK = threading.Lock()


def follow(steps: Steps) -> None:
    """Let marked steps count for a runtime of this process."""
    global _FOLLOWED
    with _LOCK:
        if steps not in _FOLLOWED:
            _FOLLOWED = (*_FOLLOWED, steps)


def forget(steps: Steps) -> None:
    """Undo `follow`."""
    global _FOLLOWED
    with _LOCK:
        _FOLLOWED = tuple(each for each in _FOLLOWED if each is not steps)


class step:
    """Mark one step of this server: from its first launch to its last.

    The begin of a step is a safe point: tables and labels change there, and never within a step.
    Steps of one process follow each other; one that runs within or beside another is not counted.
    It costs no more than a function call while the daemon does not ask for records, and never
    raises. Without an attached runtime it does nothing.

    Parameters
    ----------
    prefill
        New tokens of sequences with more than one new token.
    decode
        Sequences with one new token.
    context
        Tokens of all sequences of the step that were computed before.
    after_idle
        Whether the server waited for requests before this step. A pause of more than a second
        before a step counts as such in any case.

    Examples
    --------
    >>> with step(prefill=0, decode=8, context=4096):
    ...     pass  # the forward pass, and the sampler
    """

    __slots__ = ("_entered", "_work")

    def __init__(
        self, *, prefill: int = 0, decode: int = 0, context: int = 0, after_idle: bool = False
    ) -> None:
        self._work = Composition(prefill, decode, context, after_idle)
        self._entered: list[Steps] = []

    def __enter__(self) -> None:
        for steps in _FOLLOWED:
            if steps.enter(self._work):
                self._entered.append(steps)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while self._entered:
            self._entered.pop().leave(failed=kind is not None)


def _after_fork() -> None:
    global _LOCK
    _LOCK = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
