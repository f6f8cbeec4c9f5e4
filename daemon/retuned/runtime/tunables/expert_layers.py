"""Shadow checks of vLLM's fused experts: a whole layer runs under the table's row and the server's.

The row decides how tokens are sorted before the kernel runs, so one launch of the kernel cannot run
under two rows. ``apply`` of vLLM's Triton experts looks the row up, sorts, launches both products
and adds up. It writes to its output and to two workspaces, which it writes before it reads them.
So a second call with a private output changes nothing that the server reads.
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
"""Reason code: a layer with adapters also runs their kernels, on separate streams."""
_PACKAGE = MODULE.rpartition(".")[0] + "."
_OUT_OF_MEMORY = "OutOfMemoryError"
"""Name of PyTorch's error; the row is not its cause."""

Apply = Callable[..., Any]


@dataclass(slots=True)
class Forced:
    """A call of a layer whose row a check chooses.

    Parameters
    ----------
    config
        Row of the table; None is the server's own.
    asked
        Whether the call has looked its row up, for this tunable and these tokens.
    """

    tunable: Tunable
    tokens: int
    config: Config | None
    asked: bool = False


@dataclass(frozen=True, slots=True)
class _Due:
    """A call whose check is due.

    Parameters
    ----------
    launch
        Makes the call with its check.
    own
        The same call under the server's own row.
    """

    launch: Callable[[], Any]
    own: Forced


class _Now(threading.local):
    """State of the call that a thread executes."""

    layer: Any = None
    """A layer that has not looked its row up yet in this call."""
    forced: Forced | None = None
    inside = False


class _NoLookupError(Exception):
    """A call did not look up the row that a check forces: both sides ran the same one."""

    def __init__(self, checks: TableChecks) -> None:
        super().__init__("the layer did not look its row up")
        self.checks = checks


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
        self._on = False
        self._tunables: WeakKeyDictionary[Any, Tunable] = WeakKeyDictionary()
        """The tunable of each layer, by the look-up of its last call."""
        self._now = _Now()

    # --- in the server's classes ------------------------------------------------------------------

    def hold(self) -> None:
        """Wrap the layers of known classes. Idempotent; a class with another ``apply`` is left."""
        self._on = True
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
        """Restore the layers; `hold` wraps them again.

        Where another tool has wrapped a layer since, our wrapper stays and only calls the server's.
        """
        self._on = False
        for owner, stock in list(self._stock.items()):
            if getattr(vars(owner).get(METHOD), "__wrapped__", None) is stock:
                setattr(owner, METHOD, stock)
                del self._stock[owner]

    def uninstall(self) -> None:
        """Restore the layers and forget their tunables."""
        self.suspend()
        self._tunables.clear()

    # --- at the look-up ---------------------------------------------------------------------------

    def looked_up(self, tunable: Tunable, tokens: int) -> Forced | None:
        """Return the call that forces this look-up's row; None without one."""
        forced = self._now.forced
        if forced is None or forced.tunable is not tunable or forced.tokens != tokens:
            return None
        forced.asked = True
        return forced

    def learn(self, tunable: Tunable) -> bool:
        """Note the tunable of the layer in whose call this look-up is; return whether it is new.

        The first look-up of a call is the layer's. The next ones are of its adapters.
        """
        layer, self._now.layer = self._now.layer, None
        if layer is None or self._tunables.get(layer) is tunable:
            return False
        self._tunables[layer] = tunable
        return True

    @property
    def inside(self) -> bool:
        """Whether this thread is in a call of a layer that can be checked."""
        return self._now.inside

    # --- in a call --------------------------------------------------------------------------------

    def _wrapper(self, stock: Apply, names: tuple[str, ...]) -> Apply:
        now = self._now

        @functools.wraps(stock)
        def apply(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as vLLM's
            if not self._on:
                return stock(*args, **kwargs)
            try:
                layer = args[0] if args else kwargs["self"]
                tunable = self._tunables.get(layer)
                due = None
                if tunable is not None and tunable.checks is not None and not capturing():
                    given = {**dict(zip(names, args, strict=False)), **kwargs}
                    due = self._due(stock, given, tunable, tunable.checks)
            except Exception:
                self._failed()
                layer = due = None
            if due is not None:
                try:
                    return due.launch()
                except _NoLookupError as error:
                    error.checks.skip(UNKNOWN)
                    self._tunables.pop(layer, None)
                except Exception:  # nothing of a check reaches the server: its own row runs next
                    self._failed()
                    return self._under(due.own, functools.partial(stock, *args, **kwargs))
            now.inside, now.layer = True, layer
            try:
                return stock(*args, **kwargs)
            finally:
                now.inside, now.layer = False, None

        return apply

    def _due(
        self, stock: Apply, given: Mapping[str, Any], tunable: Tunable, checks: TableChecks
    ) -> _Due | None:
        """Return the call with its check; None if no check is due."""
        tokens = int(given[STATES].shape[0])
        axes = {"tokens": tokens}
        config = tunable.row_of(axes)
        at = None if config is None else checks.due(axes)
        if config is None or at is None:
            return None
        tunable.choose(axes, tunable.sized(axes))

        def run(row: Config | None, buffers: Mapping[str, Any]) -> Any:  # noqa: ANN401 - as vLLM's
            forced = Forced(tunable, tokens, row)
            found = self._under(forced, functools.partial(stock, **{**given, **buffers}))
            if not forced.asked:
                raise _NoLookupError(checks)
            return found

        launch = functools.partial(checks.launch, at, config, _sides(given, run))
        return _Due(launch, own=Forced(tunable, tokens, None))

    def _under(self, forced: Forced, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - as vLLM's
        """Call a layer under a row."""
        before, self._now.forced = self._now.forced, forced
        try:
            return call()
        except Exception as error:
            if forced.config is not None and type(error).__name__ != _OUT_OF_MEMORY:
                forced.tunable.leave_out(forced.config)  # such as a row that fails to compile
            raise
        finally:
            self._now.forced = before


def _sides(
    given: Mapping[str, Any], run: Callable[[Config | None, Mapping[str, Any]], Any]
) -> Sides:
    """Return both sides of one call of a layer."""
    written = (OUTPUT, *WORKSPACES)
    return Sides(
        {OUTPUT: given[OUTPUT]},
        tensors_of(value for name, value in given.items() if name not in written),
        run,
        unfit=_unfit(given["self"]),
        scratch={name: given[name] for name in WORKSPACES},
    )


def _unfit(layer: Any) -> str:  # noqa: ANN401 - vLLM's
    """Return the reason code of a layer that cannot be checked; empty if it can."""
    if getattr(layer, "_lora_context", None) is not None:
        return LORA
    # a class or a hook from elsewhere may store state in each call; a check makes two calls
    foreign = not type(layer).__module__.startswith(_PACKAGE)
    hooked = getattr(layer, "post_gemm2_hook", None) is not None
    return UNKNOWN if foreign or hooked else ""
