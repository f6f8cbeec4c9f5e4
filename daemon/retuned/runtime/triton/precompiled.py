"""Precompiled code of an artifact, offered to Triton's compiler.

Triton looks a compilation up in its cache before it compiles, by a key that contains all inputs of
the compilation. `triton.compiler.compile` calls `get_cache_manager` for the location of a key. For
one compilation, and in the compiling thread, this module answers for keys whose code was delivered.
Triton turns it into its own `CompiledKernel`, as for any cache hit. Other threads and other keys
get Triton's normal answer. If Triton is not as expected, nothing is offered and it compiles as
usual.

``RETUNED_COMPILE=never`` allows only delivered code: the module refuses to compile, and to use a
cache that other processes may write.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from retuned.runtime.artifacts.precompiled import PrecompiledEntry
from retuned.runtime.schema import Refused

log = logging.getLogger(__name__)

COMPILE = "RETUNED_COMPILE"
"""``auto`` (the default): code that was not delivered is compiled at prepare.

``never``: it is refused.
"""
NOT_SHIPPED = "not-shipped"
"""Reason code: nothing may be compiled here, and no delivered code fits."""
_MODULE = "triton.compiler.compiler"
_MANAGER = "get_cache_manager"
_LOCK = threading.RLock()


@dataclass(slots=True)
class Tally:
    """Where the code of one variant came from, in number of compilations."""

    shipped: int = 0
    """Delivered with the artifact, and loaded unchanged."""
    compiled_here: int = 0
    cached: int = 0
    """Found in Triton's own cache, on disk or in memory."""

    def as_json(self) -> dict[str, int]:
        return {
            "shipped": self.shipped,
            "compiled_here": self.compiled_here,
            "cached": self.cached,
        }


def may_compile() -> bool:
    """Whether ``RETUNED_COMPILE`` allows this process to compile code.

    Raises
    ------
    Refused
        ``setting-invalid``: an invalid value allows nothing.
    """
    value = os.environ.get(COMPILE, "").strip().lower()
    if value not in ("", "auto", "never"):
        raise Refused("setting-invalid", detail=f"{COMPILE}={value!r:.40} must be auto or never")
    return value != "never"


class Shipped:
    """The entries of one artifact, and their use.

    Parameters
    ----------
    entries
        Verified. If empty, nothing is offered, and compilations are still counted.
    """

    def __init__(self, entries: Sequence[PrecompiledEntry] = ()) -> None:
        self.entries = {entry.key: entry for entry in entries}
        self.tally = Tally()
        self._folder: Path | None = None
        self._alone = False

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Allow only the code of the entries in this context, whatever ``RETUNED_COMPILE`` is."""
        self._alone = True
        try:
            yield
        finally:
            self._alone = False

    def compiled(self, compile_it: Callable[[], Any]) -> Any:  # noqa: ANN401 - CompiledKernel
        """Run one compilation with the entries offered, and return its result.

        Raises
        ------
        Refused
            ``not-shipped`` if nothing may be compiled here and no entry fits,
            ``precompiled-unsupported`` if nothing may be compiled and this Triton does not support
            entries, ``entry-digest-differs`` if Triton has other code than what was delivered.
        Exception
            What the compiler raises.
        """
        may = may_compile() and not self._alone
        with _offering(self._place, may=may) as seen:
            try:
                made = compile_it()
            finally:
                if seen.refused is not None:  # also if the compiler raised something else
                    raise seen.refused
        if seen.hit is not None and not seen.written:
            self._check(made, self.entries[seen.hit])
            self.tally.shipped += 1
        elif seen.written or not seen.watched:
            self.tally.compiled_here += 1
        else:
            self.tally.cached += 1
        return made

    def for_here(self) -> list[PrecompiledEntry]:
        """Return the entries for Triton's device and version; only these can fit."""
        triton = sys.modules["triton"]
        arch = arch_of(triton.runtime.driver.active.get_current_target())
        version = str(triton.__version__)
        return [
            each for each in self.entries.values() if (each.arch, each.triton) == (arch, version)
        ]

    def _check(self, made: Any, entry: PrecompiledEntry) -> None:  # noqa: ANN401 - CompiledKernel
        """Verify that the bytes to be loaded are the verified ones."""
        if made.hash != entry.key or bytes(made.kernel) != entry.code:
            detail = f"the code that Triton read for '{entry.entry}' is not the delivered code"
            raise Refused("entry-digest-differs", detail=detail)

    def _place(self, key: str) -> dict[str, str] | None:
        """Return the files of a key, by name, as Triton stores a compilation; None if unknown.

        They are in a folder that only this user may enter, as long as the variant exists. If they
        cannot be written, the code is missing.
        """
        entry = self.entries.get(key)
        try:
            return None if entry is None else self._written(entry)
        except OSError as error:
            log.warning("delivered code cannot be written for Triton: %s", error)
            return None

    def _written(self, entry: PrecompiledEntry) -> dict[str, str]:
        """Write the files of an entry as Triton reads them; return their paths by name."""
        if self._folder is None:
            self._folder = Path(mkdtemp(prefix="retuned-precompiled-"))
            weakref.finalize(self, _remove, self._folder, os.getpid())
        folder = self._folder / entry.key
        stem = entry.entry[:150]  # Triton truncates the name at the same length
        files = {f"{stem}.json": json.dumps(dict(entry.meta)).encode()}
        files[f"{stem}.{entry.kind}"] = entry.code
        folder.mkdir(mode=0o700, exist_ok=True)
        for name, data in files.items():
            (folder / name).write_bytes(data)
        return {name: str(folder / name) for name in files}


def _remove(folder: Path, owner: int) -> None:
    """Remove a folder of this process; a forked child must not remove its parent's."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def arch_of(target: Any) -> str:  # noqa: ANN401 - triton's GPUTarget
    """Return the architecture of one of Triton's targets, as artifacts name it."""
    arch = str(target.arch)
    return f"sm_{arch}" if target.backend == "cuda" else arch.partition(":")[0]


class _CacheQueries:
    def __init__(self, *, may: bool) -> None:
        self.may = may
        self.watched = False
        """Whether the compiler could be observed at all."""
        self.hit: str | None = None
        """Key whose code was offered and used."""
        self.written = False
        """Whether something was compiled: its stages are written to the cache."""
        self.refused: Refused | None = None

    def refuse(self, detail: str) -> Refused:
        """Record why the compilation was stopped, and return the exception to raise."""
        detail = f"{detail}, and nothing may be compiled here ({COMPILE}=never)"
        self.refused = Refused(NOT_SHIPPED, detail=detail)
        return self.refused


class _Place:
    """Replaces Triton's cache manager for one key."""

    def __init__(
        self, seen: _CacheQueries, files: dict[str, str] | None, key: str, stock: Callable[[], Any]
    ) -> None:
        self._seen = seen
        self._files = files
        self._key = key
        self._stock = stock
        self._made: Any = None

    def get_group(self, filename: str) -> Any:  # noqa: ANN401 - as Triton's
        if self._files is not None and filename in self._files:
            self._seen.hit = self._key
            return dict(self._files)
        if not self._seen.may:
            raise self._seen.refuse("no code for this target and version was delivered")
        return self._real().get_group(filename)

    def put(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as Triton's
        self._seen.written = True
        if not self._seen.may:  # TRITON_ALWAYS_COMPILE
            raise self._seen.refuse("Triton compiles although code was delivered")
        return self._real().put(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - Triton's other attributes
        return getattr(self._real(), name)

    def _real(self) -> Any:  # noqa: ANN401 - triton's CacheManager
        if self._made is None:
            self._made = self._stock()
        return self._made


@contextmanager
def _offering(
    place: Callable[[str], dict[str, str] | None], *, may: bool
) -> Iterator[_CacheQueries]:
    """Answer for delivered keys while this thread compiles; one compilation at a time."""
    with _LOCK:
        seen = _CacheQueries(may=may)
        names = getattr(sys.modules.get(_MODULE), "__dict__", {})
        stock = names.get(_MANAGER)
        if not callable(stock):
            if not may:
                detail = f"this Triton has no {_MODULE}.{_MANAGER}; {COMPILE}=never allows no other"
                raise Refused("precompiled-unsupported", detail=detail)
            yield seen
            return
        thread: int | None = threading.get_ident()

        def manager(key: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as Triton's
            if threading.get_ident() != thread:
                return stock(key, *args, **kwargs)
            return _Place(seen, place(key), key, lambda: stock(key, *args, **kwargs))

        names[_MANAGER] = manager
        _INSTALLED.append((names, stock, manager))
        seen.watched = True
        try:
            yield seen
        finally:
            thread = None  # other code that copied this function now gets Triton's own
            _INSTALLED.clear()
            if names.get(_MANAGER) is manager:
                names[_MANAGER] = stock


_INSTALLED: list[tuple[dict[str, Any], Any, Any]] = []
"""Current replacement in Triton's module: the module's names, Triton's function, ours."""


def _after_fork() -> None:
    """Remove the replacement of a compilation that ran in another thread of the parent."""
    global _LOCK  # a thread of the parent may hold the old one
    _LOCK = threading.RLock()
    for names, stock, ours in _INSTALLED:
        if names.get(_MANAGER) is ours:
            names[_MANAGER] = stock
    _INSTALLED.clear()


os.register_at_fork(after_in_child=_after_fork)
