"""The operators that a runtime has taken over, and what became of those that it has not."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

from retuned.runtime.overrides import KEYS
from retuned.runtime.overrides_binding import Binding
from retuned.runtime.overrides_slots import Adopt, BoundOperator
from retuned.runtime.spec import Refused

log = logging.getLogger(__name__)


class Operators:
    """Operators of one runtime.

    Parameters
    ----------
    adopt
        Puts the slot of a definition under control; raises `Refused`.
    """

    def __init__(self, adopt: Adopt) -> None:
        self._adopt = adopt
        self._bound: dict[tuple[str, str], BoundOperator] = {}
        self._refused: dict[tuple[str, str], str] = {}
        self.renew()

    def renew(self) -> None:
        """Replace what another thread of the parent may have held when this child was forked."""
        self._lock = threading.Lock()

    def install(self, bindings: Sequence[Binding]) -> dict[str, str]:
        """Take operators over at every key that they have a kernel for.

        Returns
        -------
        dict
            ``on`` or a reason, by operator and key, such as ``_C::rms_norm/CUDA``.
        """
        states: dict[str, str] = {}
        with self._lock:
            for binding in bindings:
                found = {key: self._install(binding, key) for key in KEYS}
                told = {key: state for key, state in found.items() if state != "key-missing"}
                for key, state in (told or found).items():
                    states[f"{binding.operator}/{key}"] = state
        return states

    def states(self) -> list[dict[str, Any]]:
        """Return what became of each operator, for the daemon."""
        refused = [
            {"operator": operator, "key": key, "state": reason}
            for (operator, key), reason in list(self._refused.items())
        ]
        return [*(bound.state() for bound in list(self._bound.values())), *refused]

    def close(self) -> None:
        """Give all operators back."""
        with self._lock:
            for bound in self._bound.values():
                bound.destroy()
            self._bound.clear()
            self._refused.clear()

    def _install(self, binding: Binding, key: str) -> str:
        at = binding.operator, key
        if at in self._bound:
            return "on"
        try:
            self._bound[at] = BoundOperator(binding, key, adopt=self._adopt)
        except Refused as refused:
            if refused.reason != "key-missing":  # most operators have a kernel for one key only
                log.info("%s at %s is left alone: %s", *at, refused)
                self._refused[at] = refused.reason
            return refused.reason
        self._refused.pop(at, None)
        return "on"
