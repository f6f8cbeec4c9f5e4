"""Join a process of a server: attach the runtime, install each part once its modules are loaded.

A server calls its plugins early, when PyTorch is loaded and Triton may not be; or late, in a worker
that has loaded everything. So this module waits for missing modules. Processes of a server that
launch no kernels (front ends, routers, engine cores) never open a socket: otherwise an order to
every listening process would wait for them.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

from retuned.runtime.core.attach import Runtime, attach, attached
from retuned.runtime.plugins.startup import ImportWatch, is_loaded
from retuned.runtime.plugins.tuned import tune_files

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the runtime that is installed in addition to slots."""

    name: str
    switch: str
    """Variable that skips it if set to ``off``."""
    needs: str
    install: Callable[[Runtime], object]
    only_with: str = ""
    """Variable without which the module is never loaded, and is not waited for."""


def intercept_triton(runtime: Runtime) -> object:
    """Intercept Triton's launches; the first of this process opens its socket."""
    from retuned.runtime import intercept

    states = runtime.intercept_triton()
    intercept.current().when_seen = runtime.listen
    if intercept.current().kernels():
        runtime.listen()
    return states


def follow_graphs(_runtime: Runtime) -> object:
    """Follow the graphs that PyTorch captures, starting before the first one."""
    from retuned.runtime.graphs.process import process_graphs

    return process_graphs().reason or "on"


def tune_tables(runtime: Runtime) -> object:
    """Follow the tunables of the modules that are loaded so far."""
    return runtime.tune_tables()


def vllm_operators(runtime: Runtime) -> object:
    from retuned.runtime.plugins.operators_table import VLLM

    return runtime.override(*VLLM)


def sgl_kernel_operators(runtime: Runtime) -> object:
    from retuned.runtime.plugins.operators_table import SGL_KERNEL

    return runtime.override(*SGL_KERNEL)


def sglang_operators(runtime: Runtime) -> object:
    from retuned.runtime.plugins.operators_table import SGLANG

    return runtime.override(*SGLANG)


PARTS = (
    Part("graphs", "RETUNED_GRAPHS", "torch", follow_graphs),
    Part("tuned-files", "RETUNED_TUNED", "torch", tune_files),
    Part("triton", "RETUNED_TRITON", "triton", intercept_triton),
    Part(
        "triton-interpreter",
        "RETUNED_TRITON",
        "triton.runtime.interpreter",
        intercept_triton,
        only_with="TRITON_INTERPRET",
    ),
    Part("tunables: autotuners", "RETUNED_TUNED", "triton.runtime.autotuner", tune_tables),
    Part(
        "tunables: attention",
        "RETUNED_TUNED",
        "vllm.v1.attention.ops.triton_unified_attention",
        tune_tables,
    ),
    Part(
        "tunables: experts",
        "RETUNED_TUNED",
        "vllm.model_executor.layers.fused_moe.fused_moe",
        tune_tables,
    ),
    Part(
        "tunables: launches past autotuners",
        "RETUNED_TUNED",
        "vllm.model_executor.layers.mamba.ops.triton_helpers",
        tune_tables,
    ),
    Part("tunables: steps", "RETUNED_TUNED", "vllm.v1.worker.gpu_worker", tune_tables),
    Part("vllm-operators", "RETUNED_OPERATORS", "vllm._custom_ops", vllm_operators),
    Part("sgl-kernel-operators", "RETUNED_OPERATORS", "sgl_kernel", sgl_kernel_operators),
    Part(
        "sglang-operators",
        "RETUNED_OPERATORS",
        "sglang.kernels.ops.activation.activation",
        sglang_operators,
    ),
)


class PluginAttachment:
    def __init__(self, parts: tuple[Part, ...] = PARTS) -> None:
        self._parts = parts
        self._done: set[str] = set()
        self._arrived: set[str] = set()
        self._watch: ImportWatch | None = None
        self._runtime: Runtime | None = None
        self.renew()

    def renew(self) -> None:
        """Replace the lock that another thread of the parent may have held at the fork."""
        self._lock = threading.RLock()

    @property
    def runtime(self) -> Runtime | None:
        return self._runtime

    def join(self, *, arrived: str = "") -> Runtime | None:
        """Attach, and install the possible parts; a later call installs those that became possible.

        Parameters
        ----------
        arrived
            Module whose code has just run; Python still marks it as being imported.
        """
        if _is_off("RETUNED_RUNTIME"):
            return None
        if not os.environ.get("RETUNED_SOCKET_DIR"):
            log.debug("RETUNED_SOCKET_DIR is not set: nothing to join")
            return None
        with self._lock:
            self._arrived.add(arrived)
            runtime = self._attached()
            missing = [part for part in self._parts if not self._install(part, runtime)]
            if self._watch is None and missing:
                self._watch = ImportWatch({part.needs for part in missing}, self._came)
                self._watch.install()
            return runtime

    def leave(self) -> None:
        """Undo `join` as far as possible; for tests and for people."""
        with self._lock:
            if self._watch is not None:
                self._watch.remove()
                self._watch = None
            if self._runtime is not None:
                self._runtime.close()
                self._runtime = None
            self._done.clear()

    def _attached(self) -> Runtime:
        """Return the runtime of this process: the server's own, if its code has attached one."""
        there = attached()
        if self._runtime is None or self._runtime not in there:
            self._done.clear()
            by_hand = [each for each in there if each.at_once]
            self._runtime = by_hand[0] if by_hand else attach(server=_name(), at_once=False)
        return self._runtime

    def _install(self, part: Part, runtime: Runtime) -> bool:
        """Install a part if possible; False if it has to wait."""
        if part.name in self._done or _is_off(part.switch):
            return True
        if part.only_with and not os.environ.get(part.only_with):
            return True
        if part.needs not in self._arrived and not is_loaded(part.needs):
            return False
        self._done.add(part.name)
        try:
            log.info("%s: %s", part.name, part.install(runtime))
        except Exception:  # a failure of one part must not stop the others or the server
            log.exception("%s: not installed; the server runs without it", part.name)
        return True

    def _came(self, name: str) -> None:
        """Continue after an import; runs inside it, so it must not raise."""
        try:
            self.join(arrived=name)
        except Exception:  # inside another module's import of `name`, which must not fail
            log.exception("cannot continue after the import of %s", name)


_JOINING = PluginAttachment()


def join(*, arrived: str = "") -> Runtime | None:
    """Attach to this process; see `PluginAttachment.join`."""
    return _JOINING.join(arrived=arrived)


def joined() -> Runtime | None:
    """Return the runtime of this process if a plugin has attached it; else None."""
    return _JOINING.runtime


def _name() -> str:
    named = os.environ.get("RETUNED_SERVER", "")[:64]
    return named or next((each for each in ("vllm", "sglang") if each in sys.modules), "python")


def _is_off(variable: str) -> bool:
    return os.environ.get(variable, "").strip().lower() in ("off", "0", "false")


os.register_at_fork(after_in_child=_JOINING.renew)
