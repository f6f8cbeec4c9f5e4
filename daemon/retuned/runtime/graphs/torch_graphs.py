"""Torch graphs, kept and reported: the methods of ``torch.cuda.CUDAGraph`` are wrapped.

A graph's nodes can be changed only while its source graph exists. Servers rarely request that
(``keep_graph=True``), so every graph created from now on is kept. If its server did not request it,
the graph is instantiated at the end of its capture, as that server expects. This works for every
`CUDAGraph` of the process. The wrappers raise only what PyTorch raises.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from retuned.runtime.schema import Refused

log = logging.getLogger(__name__)

_MISSING = object()
_NEEDED = ("capture_begin", "capture_end", "instantiate", "replay", "reset", "raw_cuda_graph",
           "raw_cuda_graph_exec")  # fmt: skip
_REPLAY = "replay"
_ENTRY = "_retuned_entry"
_ASKED = "_retuned_asked_to_keep"
_FORGET = "_retuned_seen_before"
_WHATEVER = (AttributeError, KeyError, OSError, Refused, RuntimeError, TypeError, ValueError)
"""Exceptions of following a graph; they must not reach the server's capture."""


class TrackedGraph(Protocol):
    lock: Any
    replays: int
    gone: bool


class Watcher(Protocol):
    """Receives notifications of captures."""

    def began(self, graph: Any) -> None:  # noqa: ANN401 - a CUDAGraph
        ...

    def ended(self, graph: Any, *, ok: bool) -> TrackedGraph | None:  # noqa: ANN401 - a CUDAGraph
        """Follow a captured graph; return the object that counts and locks its replays."""
        ...

    def gone(self, graph: Any) -> None:  # noqa: ANN401 - a CUDAGraph
        ...

    def unknown(self) -> None:
        """Count a graph that is replayed and whose capture was not observed."""
        ...


class TorchGraphs:
    """Wraps and restores the class of PyTorch's graphs."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._lock = threading.Lock()
        self._cls: Any = None
        self._kept = False
        self._before: dict[str, Any] = {}
        self._ours: Any = None
        """The wrapper of replays while they are not counted."""

    @property
    def installed(self) -> bool:
        return self._cls is not None and self._kept

    @property
    def watched(self) -> bool:
        return self._cls is not None

    def watch(self, torch: Any) -> bool:  # noqa: ANN401 - the module
        """Report captures without keeping graphs; False if this PyTorch has no graphs."""
        with self._lock:
            cls = getattr(getattr(torch, "cuda", None), "CUDAGraph", None)
            names = ("capture_begin", "capture_end", "replay", "reset")
            if cls is None or not all(hasattr(cls, name) for name in names):
                return False
            if self._cls is None:
                self._wrap(cls, self._wrappers(cls))
            return True

    def install(self, torch: Any) -> None:  # noqa: ANN401 - the module
        """Follow graphs from now on; idempotent.

        Raises
        ------
        Refused
            ``graphs-not-kept`` if this PyTorch has no graphs, or cannot keep them.
        """
        with self._lock:
            if self._kept:
                return
            if self._cls is not None:
                raise Refused("graphs-not-kept", detail="captures are already only observed")
            cls = _graph_class(torch)
            self._wrap(cls, self._wrappers(cls) | _keepers(cls))
            self._kept = True

    def _wrap(self, cls: Any, methods: Mapping[str, Any]) -> None:  # noqa: ANN401 - a class
        for name, made in methods.items():
            self._before[name] = vars(cls).get(name, _MISSING)
            setattr(cls, name, made)
        self._cls = cls

    def suspend(self) -> None:
        """Count no replays for a while; captures are observed as before."""
        with self._lock:
            if self._cls is not None and self._ours is None:
                self._ours = vars(self._cls)[_REPLAY]
                _put(self._cls, _REPLAY, self._before[_REPLAY])

    def resume(self) -> None:
        """Count replays again."""
        with self._lock:
            if self._cls is not None and self._ours is not None:
                setattr(self._cls, _REPLAY, self._ours)
            self._ours = None

    def uninstall(self) -> None:
        """Restore PyTorch's methods; graphs that were kept continue to be kept."""
        with self._lock:
            cls, self._cls, self._kept = self._cls, None, False
            if cls is None:
                return
            self._ours = None
            for name, method in self._before.items():
                _put(cls, name, method)
            self._before.clear()

    def _wrappers(self, cls: Any) -> dict[str, Any]:  # noqa: ANN401 - a class
        return {
            "capture_begin": self._begin_of(cls.capture_begin),
            "capture_end": self._end_of(cls.capture_end),
            "replay": self._replay_of(cls.replay),
            "reset": self._reset_of(cls.reset),
        }

    def _begin_of(self, method: Callable[..., Any]) -> Callable[..., Any]:
        watcher = self._watcher

        def capture_begin(graph: Any, *args: Any, **named: Any) -> Any:  # noqa: ANN401 - PyTorch's
            self._tell(watcher.began, graph)
            try:
                return method(graph, *args, **named)
            except BaseException:
                self._finish(graph, ok=False)
                raise

        return _like(capture_begin, method)

    def _end_of(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def capture_end(graph: Any, *args: Any, **named: Any) -> Any:  # noqa: ANN401 - PyTorch's
            try:
                answer = method(graph, *args, **named)
                if not getattr(graph, _ASKED, True):
                    graph.instantiate()  # as PyTorch does for a graph that is not kept
            except BaseException:
                self._finish(graph, ok=False)
                raise
            self._finish(graph, ok=True)
            return answer

        return _like(capture_end, method)

    def _replay_of(self, method: Callable[..., Any]) -> Callable[..., Any]:
        watcher = self._watcher

        def replay(graph: Any) -> Any:  # noqa: ANN401 - PyTorch's
            entry = graph.__dict__.get(_ENTRY)
            if entry is None:
                if _FORGET not in graph.__dict__:
                    graph.__dict__[_FORGET] = True
                    watcher.unknown()
                return method(graph)
            with entry.lock:
                entry.replays += 1
                return method(graph)

        return _like(replay, method)

    def _reset_of(self, method: Callable[..., Any]) -> Callable[..., Any]:
        watcher = self._watcher

        def reset(graph: Any) -> Any:  # noqa: ANN401 - PyTorch's
            entry = graph.__dict__.pop(_ENTRY, None)
            self._tell(watcher.gone, graph)
            if entry is None:
                return method(graph)
            with entry.lock:
                entry.gone = True
                return method(graph)

        return _like(reset, method)

    def _finish(self, graph: Any, *, ok: bool) -> None:  # noqa: ANN401 - a CUDAGraph
        graph.__dict__.pop(_ENTRY, None)
        graph.__dict__[_FORGET] = True  # it was observed, even if it cannot be followed
        try:
            entry = self._watcher.ended(graph, ok=ok)
        except _WHATEVER:
            log.exception("a captured graph is not followed")
            return
        if entry is not None:
            graph.__dict__[_ENTRY] = entry

    def _tell(self, whom: Callable[[Any], None], graph: Any) -> None:  # noqa: ANN401 - a CUDAGraph
        try:
            whom(graph)
        except _WHATEVER:
            log.exception("a captured graph is not followed")


def _put(cls: Any, name: str, method: Any) -> None:  # noqa: ANN401 - a class
    """Make a method the class's own, or take its own away."""
    if method is not _MISSING:
        setattr(cls, name, method)
    elif name in vars(cls):
        delattr(cls, name)


def _keepers(cls: Any) -> dict[str, Any]:  # noqa: ANN401 - a class
    """Return methods that keep new graphs, and keep their instances while they are changed."""
    return {
        "__new__": staticmethod(_new_of(cls)),
        "__init__": _init_of(cls),
        "instantiate": _instantiate_of(cls.instantiate),
    }


def _graph_class(torch: Any) -> Any:  # noqa: ANN401 - the module
    cls = getattr(getattr(torch, "cuda", None), "CUDAGraph", None)
    missing = [name for name in _NEEDED if not hasattr(cls, name)]
    if cls is None or missing:
        raise Refused("graphs-not-kept", detail=f"this PyTorch's graphs have no {missing}")
    try:
        keeps = "keep_graph" in inspect.signature(cls.__new__).parameters
    except (TypeError, ValueError):
        keeps = "keep_graph" in (cls.__init__.__doc__ or "")
    if not keeps:
        raise Refused("graphs-not-kept", detail="this PyTorch has no keep_graph")
    return cls


def _new_of(cls: Any) -> Callable[..., Any]:  # noqa: ANN401 - a class
    method = cls.__new__

    def __new__(kind: Any, keep_graph: bool = False) -> Any:  # noqa: ANN401 - PyTorch's
        made = method(kind, True)
        made.__dict__[_ASKED] = bool(keep_graph)
        return made

    return __new__


def _init_of(cls: Any) -> Callable[..., Any]:  # noqa: ANN401 - a class
    method = cls.__init__

    def __init__(graph: Any, keep_graph: bool = False) -> None:  # noqa: ANN401 - PyTorch's
        if method is object.__init__:
            return
        method(graph, True)

    return __init__


def _instantiate_of(method: Callable[..., Any]) -> Callable[..., Any]:
    def instantiate(graph: Any) -> Any:  # noqa: ANN401 - PyTorch's
        entry = graph.__dict__.get(_ENTRY)
        if entry is None:
            return method(graph)
        with entry.lock:  # the instance that is being changed would be destroyed
            return method(graph)

    return _like(instantiate, method)


def _like(made: Callable[..., Any], method: Callable[..., Any]) -> Callable[..., Any]:
    made.__doc__ = method.__doc__
    made.__wrapped__ = method  # type: ignore[attr-defined]
    return made
