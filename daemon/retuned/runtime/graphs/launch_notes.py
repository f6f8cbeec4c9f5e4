"""Launch notes: the node of a graph that each launch became, queried from the driver at the launch.

While a stream is captured, its driver returns which node the next one will wait for. If that is a
single node after a launch, and that node waits for exactly the nodes before, then it is the launch.
Nothing is guessed from names or order. The arguments of the launch are recorded with it: a graph
replays with the addresses of its capture.

Launches of Triton kernels are recorded in the same way: the node, and the arguments.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from retuned.runtime.graphs.calls import Captured, GraphCalls
from retuned.runtime.schema import Key, Refused, Tensor

MAX_PENDING = 100_000
"""Launches recorded in captures that have not ended."""

_ODD = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorNote:
    address: int
    shape: tuple[int, ...]
    dtype: str
    device: int
    """Number of its GPU; -1 elsewhere."""
    dense: bool
    """Whether it is row-major without gaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    target: str
    key: Key
    node: int
    """Handle in the captured graph; 0 if `problem` is set."""
    inputs: tuple[TensorNote, ...] = ()
    outputs: tuple[TensorNote, ...] = ()
    weights: tuple[tuple[int, weakref.ref[Any]], ...] = ()
    """(index, tensor) of inputs that a variant may need in another layout."""
    problem: str = ""
    """Why no single node is this launch, as a reason code."""
    recorded: str | None = None
    """Order whose variant was captured, during a recapture; None is the original."""


@dataclass(frozen=True, slots=True)
class CaptureNotes:
    notes: Mapping[int, Note] = field(default_factory=dict)
    launches: Mapping[int, Any] = field(default_factory=dict)
    """By node: the launch of a Triton kernel, a `TritonLaunch`."""
    unplaced: tuple[Note, ...] = ()
    """Launches without a single corresponding node."""


class CaptureGate:
    """Excludes captures and changes of graphs from running at the same time."""

    def __init__(self) -> None:
        # Garbage collection may run anywhere, and a finaliser may reset a followed graph.
        self._lock = threading.RLock()
        self._captures: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def captures(self) -> int:
        return len(self._captures)

    def begin(self, graph: object) -> None:
        """Record the start of a capture; waits for a change to end, milliseconds."""
        with self._lock:
            self._captures.add(graph)

    def end(self, graph: object) -> None:
        with self._lock:
            self._captures.discard(graph)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Block captures.

        Raises
        ------
        Refused
            ``capturing``; try again after the capture.
        """
        with self._lock:
            if self._captures:
                raise Refused("capturing", detail="a graph is being captured; it must end first")
            yield


class Recorder:
    """Records launches until their capture ends."""

    def __init__(self, calls_of: Callable[[int], GraphCalls]) -> None:
        self._calls_of = calls_of
        self._lock = threading.Lock()
        self._pending: dict[int, Note] = {}
        self._launches: dict[int, Any] = {}
        self._unplaced: list[Note] = []

    def launch(
        self,
        run: Callable[..., Any],
        inputs: Sequence[Any],
        *,
        target: str,
        key: Key,
        stream: tuple[int, int],
        weights: Sequence[int] = (),
        recorded: Callable[[], str | None] = lambda: None,
    ) -> Any:  # noqa: ANN401 - result of the launch
        """Launch, and record which node it became; raises only what the launch raises.

        Parameters
        ----------
        stream
            (device, handle) of the captured stream.
        weights
            Inputs to be referenced weakly.
        recorded
            Returns, after the launch, the order whose variant it was.
        """
        before, problem = self.where(stream)
        output = run(*inputs)
        try:
            outputs = output if isinstance(output, tuple) else (output,)
            node, found = self.node(before, stream)
            note = Note(
                target=target,
                key=key,
                node=node,
                inputs=tuple(map(_tensor, inputs)),
                outputs=tuple(map(_tensor, outputs)),
                weights=tuple((index, weakref.ref(inputs[index])) for index in weights),
                problem=problem or found,
                recorded=recorded(),
            )
        except (Refused, *_ODD) as error:
            reason = error.reason if isinstance(error, Refused) else "tensors-unknown"
            note = Note(target=target, key=key, node=0, problem=reason, recorded=recorded())
        self.add(note)
        return output

    def add(self, note: Note) -> None:
        with self._lock:
            if note.problem or not note.node:
                if len(self._unplaced) < MAX_PENDING:
                    self._unplaced.append(note)
            elif len(self._pending) < MAX_PENDING:
                self._pending[note.node] = note

    def add_launch(self, node: int, launch: Any) -> None:  # noqa: ANN401 - a TritonLaunch
        with self._lock:
            if len(self._launches) < MAX_PENDING:
                self._launches[node] = launch

    def take(self, nodes: Sequence[int]) -> CaptureNotes:
        with self._lock:
            found = {node: self._pending.pop(node) for node in nodes if node in self._pending}
            launches = {node: self._launches.pop(node) for node in nodes if node in self._launches}
            unplaced, self._unplaced = self._unplaced, []
        return CaptureNotes(found, launches, tuple(unplaced))

    def clear(self) -> None:
        """Forget notes of failed captures; the handles of their nodes may be reused."""
        with self._lock:
            self._pending.clear()
            self._launches.clear()
            self._unplaced.clear()

    def where(self, stream: tuple[int, int]) -> tuple[Captured | None, str]:
        try:
            return self._calls_of(stream[0]).capturing(stream[1]), ""
        except Refused as error:
            return None, error.reason

    def node(self, before: Captured | None, stream: tuple[int, int]) -> tuple[int, str]:
        """Return the node that a launch became, or 0 and why not one node matches it.

        Raises
        ------
        Refused
            As `GraphCalls.dependencies`.
        """
        after, problem = self.where(stream)
        if before is None or after is None or before.capture != after.capture:
            return 0, problem or "not-captured"
        if len(after.last) != 1 or after.last == before.last:
            return 0, "several-nodes" if after.last != before.last else "no-node"
        node = after.last[0]
        if set(self._calls_of(stream[0]).dependencies(node)) != set(before.last):
            return 0, "several-nodes"
        return node, ""


def _tensor(value: Tensor) -> TensorNote:
    return TensorNote(
        address=int(value.data_ptr()),
        shape=tuple(map(int, value.shape)),
        dtype=str(value.dtype).removeprefix("torch."),
        device=int(value.get_device()),
        dense=bool(value.is_contiguous()),
    )


log = logging.getLogger(__name__)

_PLAIN = (int, float, str, type(None))
"""Types of arguments that are stored as they are."""


class NotedTensor:
    """Properties of a tensor at the capture, without its memory, with a tensor's interface."""

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
        return self.address

    def numel(self) -> int:
        return math.prod(self.shape)

    def size(self, dim: int | None = None) -> Any:  # noqa: ANN401 - as a tensor's
        return self.shape if dim is None else self.shape[dim]

    def stride(self, dim: int | None = None) -> Any:  # noqa: ANN401 - as a tensor's
        return self._strides if dim is None else self._strides[dim]

    def element_size(self) -> int:
        return self._item

    def untyped_storage(self) -> NotedTensor:
        return self

    def nbytes(self) -> int:
        return self._bytes


class Unknown:
    """Replaces an argument that is neither a tensor nor a plain value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonLaunch:
    jit: Any
    compiled: Any
    """Triton's compiled kernel; kept alive, since the graph launches it."""
    args: tuple[Any, ...]
    """Positional arguments; tensors as `NotedTensor`."""
    kwargs: dict[str, Any]

    @property
    def name(self) -> str:
        function = self.jit.fn
        return f"{function.__module__}:{function.__qualname__}"


class TritonNotes:
    """Wraps ``JITFunction.run`` while a graph is captured.

    Parameters
    ----------
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
        """Record launches from now on; no effect if Triton is not loaded."""
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
        """Stop recording; code that has wrapped ours keeps a wrapper that only forwards calls."""
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
        if hasattr(stock, "__retuned__"):  # interception checks whether it is installed
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
        ) as error:  # the launch has run; only its note is missing
            log.debug("a recorded launch is not noted: %r", error)
        return compiled


def noted(value: Any) -> Any:  # noqa: ANN401 - any argument
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
    """Return a copy of a grid function with tensors replaced by their properties."""
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
