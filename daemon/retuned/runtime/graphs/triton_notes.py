"""Launches of Triton kernels as they are recorded: which node, and what they were given.

While something is captured, and only then, ``JITFunction.run`` is wrapped once more. What is kept
of a launch holds none of its tensors: a graph's memory must be free for its later launches. Their
addresses, shapes and element types are kept, which is all that deciding about a variant needs.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from retuned.runtime.graphs.recording import Recorder
from retuned.runtime.spec import Refused

log = logging.getLogger(__name__)

_PLAIN = (int, float, str, type(None))
_ODD = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
"""What looking at a stranger's arguments raises."""


class NotedTensor:
    """What a tensor was at the capture, without its memory; asked as a tensor is."""

    __slots__ = ("_bytes", "_item", "_strides", "address", "device", "dtype", "shape")

    def __init__(self, tensor: Any) -> None:  # noqa: ANN401 - a tensor
        self.address = int(tensor.data_ptr())
        self.shape = tuple(map(int, tensor.shape))
        self.dtype = tensor.dtype
        self.device = tensor.device
        self._strides = tuple(map(int, tensor.stride()))
        self._item = int(tensor.element_size())
        self._bytes = int(tensor.untyped_storage().nbytes())

    def data_ptr(self) -> int:
        """Address of the first element."""
        return self.address

    def numel(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    def size(self, dim: int | None = None) -> Any:  # noqa: ANN401 - as a tensor's
        """Lengths, or one of them."""
        return self.shape if dim is None else self.shape[dim]

    def stride(self, dim: int | None = None) -> Any:  # noqa: ANN401 - as a tensor's
        """Return steps from element to element, or one of them."""
        return self._strides if dim is None else self._strides[dim]

    def element_size(self) -> int:
        """Bytes of an element."""
        return self._item

    def untyped_storage(self) -> NotedTensor:
        """Return what knows the size of the storage."""
        return self

    def nbytes(self) -> int:
        """Bytes of the storage."""
        return self._bytes


class Unknown:
    """Stands for an argument that is neither a tensor nor a plain value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonLaunch:
    """One launch of a Triton kernel that was recorded into a graph."""

    jit: Any
    """The ``JITFunction``."""
    compiled: Any
    """What Triton has compiled and launched; kept, since the graph launches it."""
    args: tuple[Any, ...]
    """Positional arguments; tensors as `NotedTensor`."""
    kwargs: dict[str, Any]
    """The others, the grid among them."""

    @property
    def name(self) -> str:
        """Where the kernel was defined."""
        function = self.jit.fn
        return f"{function.__module__}:{function.__qualname__}"


class TritonNotes:
    """Wraps ``JITFunction.run`` for as long as something is captured.

    Parameters
    ----------
    recorder
        Returns what keeps the notes.
    capturing
        Returns (device, handle) of the current stream while it is captured; else None.
    """

    def __init__(
        self,
        recorder: Callable[[], Recorder],
        *,
        capturing: Callable[[], tuple[int, int] | None],
    ) -> None:
        self._recorder = recorder
        self._capturing = capturing
        self._lock = threading.Lock()
        self._cls: Any = None
        self._stock: Any = None
        self._ours: Any = None

    def on(self) -> None:
        """Note launches from now on; nothing happens where Triton is not loaded."""
        cls = getattr(sys.modules.get("triton.runtime.jit"), "JITFunction", None)
        with self._lock:
            if cls is None or self._ours is not None:
                return
            stock = cls.__dict__.get("run")
            if not isinstance(stock, types.FunctionType):
                return
            self._cls, self._stock = cls, stock
            self._ours = self._wrap(stock)
            cls.run = self._ours

    def off(self) -> None:
        """Note no more; whoever has wrapped ours meanwhile keeps a wrapper that only passes on."""
        with self._lock:
            cls, ours = self._cls, self._ours
            if ours is not None and cls.__dict__.get("run") is ours:
                cls.run = self._stock
            self._cls = self._stock = self._ours = None

    def _wrap(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        def run(jit: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as Triton's
            stream = None if kwargs.get("warmup") or self._ours is not run else self._capturing()
            if stream is None:
                return stock(jit, *args, **kwargs)
            return self._note(stock, jit, args, kwargs, stream)

        run.__wrapped__ = stock  # type: ignore[attr-defined]
        if hasattr(stock, "__retuned__"):  # interception looks whether it is there already
            run.__retuned__ = stock.__retuned__  # type: ignore[attr-defined]
        return run

    def _note(
        self,
        stock: Callable[..., Any],
        jit: Any,  # noqa: ANN401 - a JITFunction
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        stream: tuple[int, int],
    ) -> Any:  # noqa: ANN401 - as Triton's
        recorder = self._recorder()
        before, _ = recorder.where(stream)
        compiled = stock(jit, *args, **kwargs)
        try:
            node, problem = recorder.node(before, stream)
            if not problem and compiled.function and compiled.src.fn is jit:
                given = tuple(noted(value) for value in args)
                named = {name: noted(value) for name, value in kwargs.items()}
                launch = TritonLaunch(jit=jit, compiled=compiled, args=given, kwargs=named)
                recorder.add_launch(node, launch)
        except (
            Refused,
            *_ODD,
        ) as error:  # the launch is made; that it is not noted is all that happens
            log.debug("a recorded launch is not noted: %r", error)
        return compiled


def noted(value: Any) -> Any:  # noqa: ANN401 - any argument
    """Return an argument as it may be kept."""
    if hasattr(value, "data_ptr"):
        return NotedTensor(value)
    if isinstance(value, types.FunctionType):
        return _without_tensors(value)
    if isinstance(value, tuple | list):
        return tuple(noted(each) for each in value)
    if isinstance(value, _PLAIN) or type(value).__module__.partition(".")[0] in ("triton", "torch"):
        return value
    return Unknown()


def _without_tensors(function: types.FunctionType) -> Any:  # noqa: ANN401 - a function
    """Return a grid's function that remembers tensors by what they were."""
    cells = tuple(
        types.CellType(NotedTensor(cell.cell_contents))
        if hasattr(cell.cell_contents, "data_ptr")
        else cell
        for cell in function.__closure__ or ()
    )
    defaults = tuple(
        NotedTensor(value) if hasattr(value, "data_ptr") else value
        for value in function.__defaults__ or ()
    )
    return types.FunctionType(
        function.__code__, function.__globals__, function.__name__, defaults, cells or None
    )
