"""Shadow checks of vLLM's fused experts: a whole layer runs under the table's row and the server's.

The row decides how tokens are sorted before the kernel runs, so one launch of the kernel cannot run
under two rows. ``apply`` of vLLM's Triton experts looks the row up, sorts, launches both products
and adds up. It writes only to its output and to two workspaces, so a second call with private ones
changes nothing of the server.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from retuned.runtime.tunables.checks import UNKNOWN, Sides, TableChecks, tensors_of
from retuned.runtime.tunables.records import Config
from retuned.runtime.tunables.state import Tunable, capturing

MODULE = "vllm.model_executor.layers.fused_moe.experts.triton_moe"
CLASSES = ("TritonExperts", "TritonWNA16Experts")
METHOD = "apply"
OUTPUT, WORKSPACES, STATES = "output", ("workspace13", "workspace2"), "hidden_states"
LORA = "layer-with-lora"
"""Reason code: a layer with adapters also runs their kernels, on streams of its own."""
_PACKAGE = MODULE.rpartition(".")[0] + "."

Apply = Callable[..., Any]


@dataclass(slots=True)
class Forced:
    """A call of a layer whose row a check chooses.

    Parameters
    ----------
    config
        Row of the table; None is the server's own.
    asked
        Look-ups that the call has made for this tunable and these tokens.
    """

    tunable: Tunable
    tokens: int
    config: Config | None
    asked: int = 0


class _Now(threading.local):
    """What a thread is in."""

    layer: Any = None
    """A layer whose tunable is not known yet."""
    forced: Forced | None = None
    inside = False


class ExpertLayers:
    """Hook on layers of fused experts.

    Parameters
    ----------
    failed
        Called where code of this hook failed; the server's own call runs.
    """

    def __init__(self, failed: Callable[[], None]) -> None:
        self._failed = failed
        self._stock: dict[type, Apply] = {}
        self._tunables: WeakKeyDictionary[Any, Tunable] = WeakKeyDictionary()
        """The tunable of each layer, known from the look-up in its first call."""
        self._now = _Now()

    # --- in the server's classes ------------------------------------------------------------------

    def hold(self) -> None:
        """Wrap the layers of known classes. Idempotent; a class with another ``apply`` is left."""
        module = sys.modules.get(MODULE)
        for owner in (getattr(module, name, None) for name in CLASSES):
            stock = vars(owner).get(METHOD) if isinstance(owner, type) else None
            if owner is None or owner in self._stock or not inspect.isfunction(stock):
                continue
            names = tuple(inspect.signature(stock).parameters)
            if {OUTPUT, *WORKSPACES, STATES} <= set(names):
                self._stock[owner] = stock
                setattr(owner, METHOD, self._wrapper(stock, names))

    def suspend(self) -> None:
        """Restore the layers; `hold` wraps them again."""
        for owner, stock in self._stock.items():
            found = vars(owner).get(METHOD)
            if getattr(found, "__wrapped__", None) is stock:
                setattr(owner, METHOD, stock)
        self._stock.clear()

    def uninstall(self) -> None:
        """Restore the layers and forget their tunables."""
        self.suspend()
        self._tunables.clear()

    # --- at the look-up ---------------------------------------------------------------------------

    def looked_up(self, tunable: Tunable, tokens: int) -> Forced | None:
        """Note whose row the layer of this thread looks up; return the call that forces one."""
        now = self._now
        if now.layer is not None:
            self._tunables[now.layer] = tunable
        forced = now.forced
        if forced is None or forced.tunable is not tunable or forced.tokens != tokens:
            return None
        forced.asked += 1
        return forced

    @property
    def inside(self) -> bool:
        """Whether this thread is in a call of a layer that can be checked."""
        return self._now.inside

    # --- in a call --------------------------------------------------------------------------------

    def _wrapper(self, stock: Apply, names: tuple[str, ...]) -> Apply:
        @functools.wraps(stock)
        def apply(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as vLLM's
            try:
                due = self._due(stock, {**dict(zip(names, args, strict=False)), **kwargs})
            except Exception:
                self._failed()
                due = None
            if due is not None:
                try:
                    return due()
                except Exception:  # of the table's side: the server's own row runs next
                    self._failed()
            self._now.inside = True
            try:
                return stock(*args, **kwargs)
            finally:
                self._now.inside, self._now.layer = False, None

        return apply

    def _due(self, stock: Apply, given: Mapping[str, Any]) -> Callable[[], Any] | None:
        """Return the call with its check; None if no check is due."""
        layer = given["self"]
        tunable = self._tunables.get(layer)
        if tunable is None:
            self._now.layer = layer
            return None
        checks = tunable.checks
        if checks is None or capturing():
            return None
        tokens = int(given[STATES].shape[0])
        axes = {"tokens": tokens}
        config = tunable.row_of(axes)
        at = None if config is None else checks.due(axes)
        if config is None or at is None:
            return None
        tunable.choose(axes, tunable.sized(axes))
        call = _Call(layer, stock, given, tunable, tokens, checks)

        def launch() -> Any:  # noqa: ANN401 - as vLLM's
            try:
                return checks.launch(at, config, call.sides(self._under))
            except Exception:  # such as a row that fails to compile
                tunable.leave_out(config)
                raise

        return launch

    def _under(self, call: _Call, config: Config | None, buffers: Mapping[str, Any]) -> Any:  # noqa: ANN401 - as vLLM's
        forced = self._now.forced = Forced(call.tunable, call.tokens, config)
        try:
            return call.stock(**{**call.given, **buffers})
        finally:
            self._now.forced = None
            if forced.asked != 1:  # another version looks up otherwise: both sides ran one row
                self._tunables.pop(call.layer, None)
                call.checks.count_error(LookupError(f"{forced.asked} look-ups in a layer"))


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of a layer."""

    layer: Any
    stock: Apply
    given: Mapping[str, Any]
    tunable: Tunable
    tokens: int
    checks: TableChecks

    def sides(self, under: Callable[..., Any]) -> Sides:
        """Return both sides of the call."""
        written = (OUTPUT, *WORKSPACES)
        return Sides(
            {OUTPUT: self.given[OUTPUT]},
            tensors_of(value for name, value in self.given.items() if name not in written),
            functools.partial(under, self),
            unfit=self._unfit(),
            scratch={name: self.given[name] for name in WORKSPACES},
        )

    def _unfit(self) -> str:
        if getattr(self.layer, "_lora_context", None) is not None:
            return LORA
        # a class or a hook from elsewhere may keep what it saw in a call, and would see two
        foreign = not type(self.layer).__module__.startswith(_PACKAGE)
        hooked = getattr(self.layer, "post_gemm2_hook", None) is not None
        return UNKNOWN if foreign or hooked else ""
