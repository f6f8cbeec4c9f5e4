"""Hook where launches are intercepted: `JITFunction.run`, and the interpreter's `GridExecutor`.

Every launch of a ``@triton.jit`` function ends in ``JITFunction.run``, which is Python in every
version of Triton: ``kernel[grid](...)``, ``Autotuner`` and ``Heuristics`` look it up on the class
at launch time. So one assignment to the class reaches kernels imported long before. In Triton's
interpreter the only such place is ``GridExecutor.__call__``. The hook inspects whether both exist
and take the expected arguments. If not, interception is off and reports the reason. If the hook
itself fails during a launch, the server's own launch runs.
"""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from retuned.runtime.intercept.dispatch import ATTRIBUTE, PLACES, WRAPPERS, Stock, shortcut
from retuned.runtime.intercept.observed import identity, source_of
from retuned.runtime.intercept.registry import Kernel
from retuned.runtime.intercept.timing import Stopwatch, timing_is_asked

log = logging.getLogger(__name__)

MAX_KERNELS = 1024
"""Kernels followed; launches of further ones are not counted."""
OURS = "retuned_triton_"
"""Prefix of the modules of Retuned's own variants; they are not the server's kernels."""


class Interceptor:
    """Interception in this process; created once, installed and uninstalled on request."""

    def __init__(self) -> None:
        self.states = {"jit": "triton-missing", "interpreter": "triton-missing"}
        """Per place: ``on``, or the reason why not."""
        self.when_seen: Callable[[], None] | None = None
        """Called when a launch has a new key, including the first launch; must not raise."""
        self.stopwatch: Stopwatch | None = Stopwatch() if timing_is_asked() else None
        """Times a few launches; None if timing is off."""
        self._left: list[Stopwatch] = []
        """Kept alive in a child: the events belong to the device context of its parent."""
        self._lock = threading.RLock()
        self._wanted = False
        self._short: Stock | None = None
        self._stock: dict[str, tuple[type, str, Stock, Stock]] = {}
        self._seen: dict[int, weakref.ref[Any]] = {}  # the record is an attribute of its kernel
        self._open: dict[str, list[tuple[str, Any]]] = {}

    # --- on and off -------------------------------------------------------------------------------

    def install(self) -> dict[str, str]:
        """Intercept what is imported now; `poll` adds later imports. Idempotent."""
        with self._lock:
            self._wanted = True
            self.poll()
            return dict(self.states)

    def poll(self) -> None:
        """Intercept what was imported since, and time a few launches.

        Cheap, called periodically.
        """
        self._find_places()
        if self.stopwatch is not None:
            self.stopwatch.round(self.kernels())

    def _find_places(self) -> None:
        if not self._wanted or len(self._stock) == len(self.states):
            return
        with self._lock:
            for place, (module, name, method, check) in PLACES.items():
                loaded = sys.modules.get(module)
                cls = getattr(loaded, name, None)
                if place in self._stock or cls is None:
                    continue
                found = cls.__dict__.get(method)
                reason = check(cls, found)
                self.states[place] = reason or "on"
                if reason is None:
                    assert found is not None, "checked"
                    wrapped = WRAPPERS[place](self, found)
                    wrapped.__wrapped__ = found
                    wrapped.__retuned__ = self
                    setattr(cls, method, wrapped)
                    self._stock[place] = (cls, method, found, wrapped)
                    if place == "jit":
                        self._shorten(cls, found, wrapped)

    def _shorten(self, cls: type, stock: Stock, run: Any) -> None:  # noqa: ANN401 - ours
        self._short = shortcut(cls, stock=stock, run=run, through=run.__through__)
        if self._short is not None:
            setattr(cls, "__getitem__", self._short)  # noqa: B010 - to mypy a class is not a dict

    def suspend(self) -> None:
        """Restore the original methods for a while; kernels and counts stay."""
        with self._lock:
            for cls, method, stock, wrapped in self._stock.values():
                if cls.__dict__.get(method) is wrapped:
                    setattr(cls, method, stock)
                if self._short is not None and cls.__dict__.get("__getitem__") is self._short:
                    delattr(cls, "__getitem__")

    def resume(self) -> None:
        """Intercept again what `suspend` has restored."""
        with self._lock:
            for place, (cls, method, stock, wrapped) in self._stock.items():
                if cls.__dict__.get(method) is stock:
                    setattr(cls, method, wrapped)
                if place == "jit" and self._short is not None:
                    setattr(cls, "__getitem__", self._short)  # noqa: B010 - as in `_shorten`

    def uninstall(self) -> None:
        """Restore the original methods; launches in progress end as they began. Idempotent."""
        with self._lock:
            self._wanted = False
            self.suspend()  # where other code has wrapped ours since, ours only forwards the calls
            self.states.update(dict.fromkeys(self._stock, "uninstalled"))
            self._stock.clear()
            self._short = None
            self._forget_all()
            self._open.clear()

    def reset(self) -> None:
        """Start over in a forked child: no counts, no swaps, new locks."""
        self._lock = threading.RLock()
        if self.stopwatch is not None:
            self._left.append(self.stopwatch)
            self.stopwatch = Stopwatch()
        for kernel in self.kernels():
            kernel.slot = None
            kernel.restart()
        self._open.clear()

    @property
    def on(self) -> bool:
        return bool(self._stock)

    # --- kernels ----------------------------------------------------------------------------------

    def kernels(self) -> list[Kernel]:
        """Return every kernel that was launched and still exists, in order of first launch."""
        targets = [reference() for reference in list(self._seen.values())]
        found = [each.__dict__.get(ATTRIBUTE) for each in targets if each is not None]
        return [kernel for kernel in found if kernel is not None]

    def open(self, name: str, digest: str, slot: Any) -> int:  # noqa: ANN401 - a KernelSlot
        """Dispatch launches of a kernel through a slot; return how many instances exist now.

        Kernels that are created later join at their first launch.
        """
        with self._lock:
            self._open.setdefault(name, []).append((digest, slot))
            joined = 0
            for kernel in self.kernels():
                joined += self._join(kernel)
            return joined

    def close(self, slot: Any) -> None:  # noqa: ANN401 - a KernelSlot
        """Stop dispatching launches through a slot."""
        with self._lock:
            for name, slots in list(self._open.items()):
                self._open[name] = [each for each in slots if each[1] is not slot]
            for kernel in self.kernels():
                if kernel.slot is slot:
                    kernel.slot = None

    def _join(self, kernel: Kernel) -> bool:
        for digest, slot in self._open.get(identity(kernel), ()):
            if not kernel.variadic and source_of(kernel).digest == digest:
                kernel.slot = slot
                return True
        return False

    def sight(
        self,
        target: Any,  # noqa: ANN401 - of the server's Triton
        function: Callable[[], Any],
        constexprs: Callable[[], list[str]],
        *,
        interpreted: bool,
    ) -> Kernel | None:
        """Register a kernel at its first launch; None for one that is not followed.

        Never raises.
        """
        try:
            with self._lock:
                found: Kernel | None = target.__dict__.get(ATTRIBUTE)
                if found is not None or not self._wanted:
                    return found
                inner = function()
                if len(self._seen) < MAX_KERNELS and not inner.__module__.startswith(OURS):
                    found = Kernel(target, inner, constexprs=constexprs(), interpreted=interpreted)
                    found.tell = self._tell
                    self._join(found)
                key = id(target)
                gone = self._seen
                self._seen[key] = weakref.ref(target, lambda _: gone.pop(key, None))
                setattr(target, ATTRIBUTE, found)
                return found
        except Exception as error:  # an untrusted object: its launch must continue
            log.warning("a Triton kernel is not followed: %r", error)
            return None

    def _tell(self) -> None:
        if self.when_seen is not None:
            self.when_seen()

    def _forget_all(self) -> None:
        for kernel in self.kernels():
            kernel.slot = None
            kernel.disarm()
        for reference in list(self._seen.values()):
            target = reference()
            if target is not None and ATTRIBUTE in target.__dict__:
                delattr(target, ATTRIBUTE)
        self._seen = {}
