"""Triton's compiler, offered the code that an artifact brought along.

Triton looks a compilation up in its cache before it compiles, by a key that holds all that decides
what comes out. `triton.compiler.compile` asks `get_cache_manager` for the place of a key; for the
time of one compilation, and in the thread that compiles, this module answers for keys whose code
was delivered. What Triton makes of it is its own `CompiledKernel`, as for any hit; other threads
and other keys get what they always get. Where Triton is not as expected nothing is offered, and it
compiles as ever.

``RETUNED_COMPILE=never`` allows no other code than what was delivered: what would be compiled, or
taken from a cache that others may write, is refused.
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
"""``auto`` (the default): what was not delivered is compiled at prepare. ``never``: it is not."""
NOT_SHIPPED = "not-shipped"
"""Reason of a refusal: nothing may be compiled here, and no code that was delivered fits."""
_MODULE = "triton.compiler.compiler"
_MANAGER = "get_cache_manager"
_LOCK = threading.RLock()


@dataclass(slots=True)
class Tally:
    """Where the code of one variant came from, in compilations asked for."""

    shipped: int = 0
    """Delivered with the artifact, and loaded as it was."""
    compiled_here: int = 0
    """Compiled in this process."""
    cached: int = 0
    """Found in Triton's own cache, on disk or in memory."""

    def as_json(self) -> dict[str, int]:
        return {
            "shipped": self.shipped,
            "compiled_here": self.compiled_here,
            "cached": self.cached,
        }


def may_compile() -> bool:
    """Whether code may be compiled in this process, as ``RETUNED_COMPILE`` says.

    Raises
    ------
    Refused
        ``setting-invalid``: what cannot be understood allows nothing.
    """
    said = os.environ.get(COMPILE, "").strip().lower()
    if said not in ("", "auto", "never"):
        raise Refused("setting-invalid", detail=f"{COMPILE}={said!r:.40} is neither auto nor never")
    return said != "never"


class Shipped:
    """The entries of one artifact, and what came of them.

    Parameters
    ----------
    entries
        Verified; none offers nothing, and compilations are still counted.
    """

    def __init__(self, entries: Sequence[PrecompiledEntry] = ()) -> None:
        self.entries = {entry.key: entry for entry in entries}
        self.tally = Tally()
        self._folder: Path | None = None
        self._alone = False

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Allow no other code than the entries' meanwhile, whatever ``RETUNED_COMPILE`` says."""
        self._alone = True
        try:
            yield
        finally:
            self._alone = False

    def compiled(self, compile_it: Callable[[], Any]) -> Any:  # noqa: ANN401 - CompiledKernel
        """Run one compilation with the entries offered, and return what it returns.

        Raises
        ------
        Refused
            ``not-shipped`` where nothing may be compiled here and no entry fits,
            ``precompiled-unsupported`` where nothing may be and this Triton cannot be offered any,
            ``entry-digest-differs`` if Triton holds another code than what was delivered.
        Exception
            What the compiler raises.
        """
        may = may_compile() and not self._alone
        with _offering(self._place, may=may) as seen:
            try:
                made = compile_it()
            finally:
                if seen.refused is not None:  # whatever the compiler made of it
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
        """Return the entries for Triton's device and version; others need not be tried."""
        triton = sys.modules["triton"]
        arch = arch_of(triton.runtime.driver.active.get_current_target())
        version = str(triton.__version__)
        return [
            each for each in self.entries.values() if (each.arch, each.triton) == (arch, version)
        ]

    def _check(self, made: Any, entry: PrecompiledEntry) -> None:  # noqa: ANN401 - CompiledKernel
        """Make sure that the bytes to be loaded are those that were verified."""
        if made.hash != entry.key or bytes(made.kernel) != entry.code:
            detail = f"what Triton read of '{entry.entry}' is not what was delivered"
            raise Refused("entry-digest-differs", detail=detail)

    def _place(self, key: str) -> dict[str, str] | None:
        """Return the files of a key, by name, as Triton keeps a compilation; None where unknown.

        They lie in a folder that only this user may enter, for as long as the variant lives. Where
        they cannot be written there is no code.
        """
        entry = self.entries.get(key)
        try:
            return None if entry is None else self._written(entry)
        except OSError as error:
            log.warning("code that came along cannot be handed to Triton: %s", error)
            return None

    def _written(self, entry: PrecompiledEntry) -> dict[str, str]:
        """Write the files of an entry as Triton reads them; return their paths by name."""
        if self._folder is None:
            self._folder = Path(mkdtemp(prefix="retuned-precompiled-"))
            weakref.finalize(self, _remove, self._folder, os.getpid())
        folder = self._folder / entry.key
        stem = entry.entry[:150]  # as Triton cuts it
        files = {f"{stem}.json": json.dumps(dict(entry.meta)).encode()}
        files[f"{stem}.{entry.kind}"] = entry.code
        folder.mkdir(mode=0o700, exist_ok=True)
        for name, data in files.items():
            (folder / name).write_bytes(data)
        return {name: str(folder / name) for name in files}


def _remove(folder: Path, owner: int) -> None:
    """Remove a folder of this process; a forked child that ends leaves its parent's alone."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def arch_of(target: Any) -> str:  # noqa: ANN401 - triton's GPUTarget
    """Return the architecture of one of Triton's targets, as artifacts name it."""
    arch = str(target.arch)
    return f"sm_{arch}" if target.backend == "cuda" else arch.partition(":")[0]


class _CacheQueries:
    """What one compilation asked its cache for."""

    def __init__(self, *, may: bool) -> None:
        self.may = may
        self.watched = False
        """Whether the compiler could be watched at all."""
        self.hit: str | None = None
        """Key whose code was offered and taken."""
        self.written = False
        """Whether something was compiled: its stages are written to the cache."""
        self.refused: Refused | None = None

    def refuse(self, detail: str) -> Refused:
        """Remember why the compilation was stopped, and return it to be raised."""
        detail = f"{detail}, and nothing may be compiled here ({COMPILE}=never)"
        self.refused = Refused(NOT_SHIPPED, detail=detail)
        return self.refused


class _Place:
    """Stands where Triton keeps a compilation."""

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
            raise self._seen.refuse("Triton compiles although there is code")
        return self._real().put(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever else Triton asks
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
        _STANDING.append((names, stock, manager))
        seen.watched = True
        try:
            yield seen
        finally:
            thread = None  # whoever has taken it over meanwhile is led to Triton's own
            _STANDING.clear()
            if names.get(_MANAGER) is manager:
                names[_MANAGER] = stock


_STANDING: list[tuple[dict[str, Any], Any, Any]] = []
"""What stands in Triton's module at the moment: the module's names, Triton's own, ours."""


def _after_fork() -> None:
    """Leave nothing of a compilation that another thread of the parent was in."""
    global _LOCK  # the old one may be held by a thread that is not here
    _LOCK = threading.RLock()
    for names, stock, ours in _STANDING:
        if names.get(_MANAGER) is ours:
            names[_MANAGER] = stock
    _STANDING.clear()


os.register_at_fork(after_in_child=_after_fork)
