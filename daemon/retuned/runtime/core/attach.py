"""Attachment of Retuned to one server process: slots, interception, socket, forks.

Attaching never raises into the server. ``RETUNED_RUNTIME=off`` turns the runtime off.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from retuned.runtime import intercept
from retuned.runtime.core.control_socket import ControlSocket, PeerUid, own_path, peer_uid, sweep
from retuned.runtime.core.host import RuntimeHost
from retuned.runtime.core.slots import Slot
from retuned.runtime.intercept.service import Interception
from retuned.runtime.profiler.schedule import Rule, rule_of
from retuned.runtime.profiler.service import Windows
from retuned.runtime.schema import Key, Refused
from retuned.runtime.shadow.sampler import Compare, compare_tensors
from retuned.runtime.steps import marks
from retuned.runtime.steps.hook import Steps
from retuned.runtime.torch_ops.binding import Binding
from retuned.runtime.torch_ops.library import TorchOps
from retuned.runtime.torch_ops.slots import Operators

log = logging.getLogger(__name__)

_ATTACHED: weakref.WeakSet[Runtime] = weakref.WeakSet()


class Runtime:
    """Retuned in this process; created by `attach`.

    Parameters
    ----------
    socket_path
        Returns where this process listens; None if it must not listen.
    enabled
        False makes every slot call only its original.
    credentials
        Returns the user id of a peer of the control socket.
    at_once
        False listens only after the first slot exists: for processes that other processes started.
    windows
        Folder for profiler windows and their schedule; None takes no windows.
    """

    def __init__(
        self,
        host: RuntimeHost,
        *,
        socket_path: Callable[[], Path | None],
        enabled: bool = True,
        credentials: PeerUid = peer_uid,
        at_once: bool = True,
        windows: tuple[Path, Rule] | None = None,
    ) -> None:
        self.enabled = enabled
        self.at_once = at_once
        self._host = host
        self._socket_path = socket_path
        self._credentials = credentials
        self._ops = TorchOps()
        self._operators = Operators(self._adopt)
        host.reports["operators"] = self._operators.states
        host.on_detach = self._detach
        self._control: ControlSocket | None = None
        self._windows = _windows(host, windows) if windows and enabled else None
        self._intercepts = False
        self._starting = threading.Lock()
        self._settled = not enabled
        self._swept = False
        if at_once:
            self.listen()

    @property
    def socket(self) -> Path | None:
        return self._control.path if self._control is not None else None

    @property
    def steps(self) -> Steps:
        """Steps of this process's server, for `retuned.runtime.step`."""
        return self._host.steps

    @property
    def intercepts(self) -> bool:
        return self._intercepts

    def slot(
        self,
        definition: Mapping[str, Any],
        original: Callable[..., Any],
        *,
        key: Callable[..., Key] | None = None,
    ) -> Slot:
        """Put a slot in front of a kernel of this server.

        Parameters
        ----------
        original
            The server's own code; takes the inputs in the definition's order.
        key
            Computes the lengths of the variable axes from the inputs; from the shapes by default.

        Returns
        -------
        Slot
            Call it instead of the original. If the definition is invalid or Retuned is off, it only
            calls the original.
        """
        try:
            slot = Slot(definition, original, key=key)
            if self.enabled:
                self._adopt(slot)
                return slot
        except Refused as error:
            log.error("no slot, the original stays: %s", error)
        return passing_slot(definition, original)

    def register_op(self, slot: Slot) -> Callable[..., Any]:
        """Register one slot as ``torch.ops.retuned.<op_type>``; see `register_torch_op`."""
        return self.register_torch_op(slot.spec.op_type, [slot])

    def register_torch_op(self, op_type: str, slots: Sequence[Slot]) -> Callable[..., Any]:
        """Register slots of one family as ``torch.ops.retuned.<op_type>``.

        Profilers then show ``retuned::<op_type>`` with its shapes. Compiled graphs call it as an
        opaque operator, so that a swap reaches them too. The lengths of the constant axes choose
        the slot. Another call for the same family adds slots.

        Returns
        -------
        Callable
            The operator. Without PyTorch, or if PyTorch refuses it, a function that does the same.
        """
        return self._ops.register(op_type, slots)

    def override(self, *bindings: Binding) -> dict[str, str]:
        """Put slots behind operators that another library registered, until `close`.

        Returns
        -------
        dict
            ``on`` or a reason code, by operator and key of the dispatcher.
        """
        if not self.enabled:
            return {binding.operator: "runtime-off" for binding in bindings}
        return self._operators.install(bindings)

    def intercept_triton(self) -> dict[str, str]:
        """Intercept launches of Triton kernels until `close`; see `intercept.install`."""
        if not self.enabled:
            return {"jit": "runtime-off", "interpreter": "runtime-off"}
        self._intercepts = True
        return intercept.install()

    def tune_files(self) -> dict[str, str]:
        """Accept orders for the tuned-config files of this server; see `runtime.tuned_files`.

        Returns
        -------
        dict
            By format of file, the module that reads it in this process; empty if no module does.
        """
        return self._host.tuned.turn_on() if self.enabled else {}

    def tune_tables(self) -> dict[str, str]:
        """Follow the tunables of the modules that are loaded, and accept orders for tables.

        Cheap to call again after an import; see `runtime.tunables`.

        Returns
        -------
        dict
            ``on`` or a reason code, by family.
        """
        return self._host.tunables.turn_on(self.listen) if self.enabled else {}

    def graph(self, *, capture: Callable[[], object]) -> Callable[[], None]:
        """Register a function that captures this server's graphs again.

        It is needed where changing the nodes of captured graphs is not enough.

        Parameters
        ----------
        capture
            Captures graphs again and makes the server replay the new ones. It is called on the
            control thread: when the daemon requests it, and when a recorded variant is rolled back.
            If it raises, the existing graphs continue to be replayed.

        Returns
        -------
        Callable
            Withdraws the function.
        """
        return self._host.graphs.offer(capture)

    def close(self) -> None:
        _ATTACHED.discard(self)
        marks.forget(self.steps)
        atexit.unregister(self.close)
        self._settled = True
        if self._windows is not None:
            self._windows.close()
        if self._control is not None:
            self._control.close()
            self._control = None
        self._operators.close()
        self._host.tunables.close()
        self._host.reset()
        self._ops.close()
        if self._intercepts:
            self._intercepts = False
            intercept.uninstall()

    def _detach(self) -> None:
        """End for good: what is imported later is left alone too."""
        self.enabled = False
        self.close()

    def _adopt(self, slot: Slot) -> None:
        self._host.add(slot)
        self.listen()

    def listen(self) -> None:
        """Start to listen if this process does not listen yet. Cheap to call again. Never raises.

        Called with the first slot, and in a forked child with its first launch.
        """
        if self._settled:
            return
        with self._starting:
            if not self._settled:
                self._settled = True  # also after a failure: it must not be tried at every launch
                self._listen()
                if self._windows is not None:
                    self._windows.start()

    def before_fork(self) -> None:
        if self._windows is not None:
            self._windows.before_fork()

    def after_fork(self) -> None:
        """Start over in a forked child: no orders, no counts, a new socket at its first launch.

        A variant must not survive the fork, because the threads that run its parts do not. A child
        that never launches a kernel gets neither socket nor thread; most children run another
        program soon.
        """
        self._starting = threading.Lock()  # another thread of the parent may have held it
        self._operators.renew()
        if self._windows is not None:
            self._windows.after_fork()
        if self._control is not None:
            self._control.abandon()
            self._control = None
        self._settled, self._swept = not self.enabled, False
        self._host.tunables.after_fork()
        self._host.reset(first_launch=self.listen)

    def _listen(self) -> None:
        path = self._socket_path()
        if path is None:
            return
        try:
            self._control = ControlSocket(
                path, self._host.answer, idle=self._idle, credentials=self._credentials
            )
        except (OSError, RuntimeError) as error:
            log.error("no control socket at %s, the server runs without swaps: %s", path, error)

    def _idle(self) -> None:
        control = self._control
        if not self._swept and control is not None:
            self._swept = True
            sweep(control.path.parent)
        self._host.housekeeping()


def _windows(host: RuntimeHost, wanted: tuple[Path, Rule]) -> Windows:
    folder, rule = wanted
    graphs = host.graphs
    found = Windows(
        folder,
        rule,
        launched=host.launched,
        quiet=graphs.quiet,
        captured=graphs.captured,
        held=host.why_no_window,
    )
    host.reports["windows"] = found.state
    return found


def attached() -> list[Runtime]:
    return list(_ATTACHED)


def keep(runtime: Runtime) -> None:
    """Keep a runtime until it is closed, at the latest when the process ends."""
    _ATTACHED.add(runtime)
    marks.follow(runtime.steps)
    atexit.register(runtime.close)


def passing_slot(definition: Mapping[str, Any], original: Callable[..., Any]) -> Slot:
    """Return a slot that only calls the original, whatever the definition contains."""
    try:
        slot = Slot(definition, original)
    except Refused:
        slot = Slot(_OPAQUE, original)
    slot.call = original
    type(slot).__call__ = staticmethod(original)  # type: ignore[method-assign]
    return slot


_OPAQUE: Mapping[str, Any] = {
    "name": "unusable",
    "op_type": "unusable",
    "axes": {"N": {"type": "var"}},
    "inputs": {"x": {"shape": ["N"], "dtype": "float32"}},
    "outputs": {"y": {"shape": ["N"], "dtype": "float32"}},
}


def _before_fork() -> None:
    for runtime in list(_ATTACHED):
        runtime.before_fork()


def _after_fork() -> None:
    for runtime in list(_ATTACHED):
        runtime.after_fork()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


def attach(
    socket_path: Path | str | None = None,
    *,
    server: str = "",
    socket_dir: Path | str | None = None,
    artifacts_dir: Path | str | None = None,
    compare: Compare = compare_tensors,
    credentials: PeerUid = peer_uid,
    triton: bool | None = None,
    at_once: bool = True,
    windows: bool = True,
) -> Runtime:
    """Attach Retuned to this process.

    Parameters
    ----------
    socket_path
        Control socket of exactly this process.
    socket_dir
        Folder in which every process of the server has a separate ``<pid>.sock``; used if
        `socket_path` is not given. The default is ``RETUNED_SOCKET_DIR``. Without any of them,
        slots count launches and nothing can be swapped.
    artifacts_dir
        Folder that must contain all artifacts; the default is ``RETUNED_ARTIFACTS_DIR``.
    compare
        Judges outputs in shadow checks and self-checks; other devices may need another function.
    triton
        Whether launches of the server's Triton kernels are intercepted until `Runtime.close`; by
        default only if ``RETUNED_TRITON=on`` is set. `intercept.install` does the same later.
    at_once
        False listens only after the first slot exists. A runtime that a plugin attached this way is
        closed when the server's own code attaches: a process has one socket.
    windows
        Whether the runtime takes profiler windows if ``RETUNED_TRACE_DIR`` names a folder for them
        (``docs/running.md``); False for a server that profiles itself.
    """
    folder = socket_dir or os.environ.get("RETUNED_SOCKET_DIR")
    artifacts = artifacts_dir or os.environ.get("RETUNED_ARTIFACTS_DIR")
    enabled = _is_on("RETUNED_RUNTIME")
    for other in attached() if at_once else ():
        if not other.at_once:  # attached by a plugin
            triton = triton is not False and (other.intercepts or triton)
            other.close()

    owner = os.getpid()

    def path() -> Path | None:
        if socket_path is not None:  # a forked child must not take it from its parent
            return Path(socket_path) if os.getpid() == owner else None
        return own_path(Path(folder) / f"{os.getpid()}.sock") if folder else None

    runtime = Runtime(
        RuntimeHost(
            server,
            artifacts_dir=Path(artifacts) if artifacts else None,
            compare=compare,
            may_capture=_is_on("RETUNED_CAPTURE"),
            interception=Interception(intercept.current()),
        ),
        socket_path=path,
        enabled=enabled,
        credentials=credentials,
        at_once=at_once,
        windows=_windows_wanted() if windows else None,
    )
    if enabled:
        if triton if triton is not None else _is_asked("RETUNED_TRITON"):
            runtime.intercept_triton()
        keep(runtime)
    return runtime


def _windows_wanted() -> tuple[Path, Rule] | None:
    rule = rule_of(os.environ)
    return None if rule is None else (Path(os.environ["RETUNED_TRACE_DIR"].strip()), rule)


def _is_on(variable: str) -> bool:
    return os.environ.get(variable, "").strip().lower() not in ("off", "0", "false")


def _is_asked(variable: str) -> bool:
    return os.environ.get(variable, "").strip().lower() in ("on", "1", "true")
