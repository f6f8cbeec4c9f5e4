"""Observed kernels of the server as JSON data, for lifting them into definitions.

One record per shape key::

    {"kernel": "module:qualname", "source_digest": "sha256:...", "source": text or null,
     "unresolved": [...], "launcher": "jit" or "interpreter",
     "params": [{"name", "kind", "dtype", "value", "numel", "aligned16"}],
     "options": {"num_warps": ...}, "grid": [x, y, z], "grid_source": null, "count": n,
     "device_time": {"timed": n, "mean_ns": t, "least_ns": t, "idle": n} or null}

``kind`` is ``pointer``, ``int``, ``float``, ``constexpr`` (also a pointer that is None) or
``other``. Values other than plain numbers and short text are objects that name their type.
``grid_source`` is text only if the server passed a function. On the control socket the text of a
source is sent once per page, under its digest. Names and text are untrusted.
"""

from __future__ import annotations

import inspect
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from retuned.runtime.intercept.arguments import Observation
from retuned.runtime.intercept.registry import Cell, Kernel
from retuned.runtime.intercept.sources import Gathered, gather, text_of
from retuned.runtime.schema import Refused

MAX_PAGE_BYTES = 1 << 20
"""Longest page, except for a single longer source."""
MAX_NAME_CHARS = 512
_MAX_GRID_CHARS = 2000


def identity(kernel: Kernel) -> str:
    return kernel.name[:MAX_NAME_CHARS]


def source_of(kernel: Kernel) -> Gathered:
    return gather(kernel.function, text_of(kernel.target(), kernel.function))


def records(kernel: Kernel) -> Iterator[dict[str, Any]]:
    """Return one record per described shape key of a kernel, most launches first."""
    source = source_of(kernel)
    cells = [cell for cell in kernel.cells() if cell.observation is not None]
    for cell in sorted(cells, key=lambda cell: -cell.count):
        observation = cell.observation
        assert observation is not None, "filtered above"
        yield _record(kernel, source, observation, cell)


def summary(kernel: Kernel) -> dict[str, Any]:
    """Return the entry of a kernel in a list of kernels; cheap, without its source."""
    counts = sorted((cell.count for cell in kernel.cells()), reverse=True)
    return {
        "kernel": identity(kernel),
        "launcher": "interpreter" if kernel.interpreted else "jit",
        "launches": kernel.total(),
        "keys": len(counts),
        "other_launches": kernel.other.count,
        "liftable": not kernel.variadic,
        "slot": kernel.slot.spec.name if kernel.slot is not None else None,
    }


def page(kernels: Iterable[Kernel], request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a page of records.

    Parameters
    ----------
    kernels
        All observed kernels, in order of first launch.
    request
        ``after``: where the previous page ended, 0 for the first. ``kernel``: only this identity.

    Returns
    -------
    dict
        ``records`` without ``source``, ``sources`` by digest, and ``next``: the value of ``after``
        for the next page, or None at the end.

    Raises
    ------
    Refused
        ``bad-request``.
    """
    after, wanted = request.get("after", 0), request.get("kernel")
    if type(after) is not int or after < 0 or not isinstance(wanted, (str, type(None))):
        raise Refused("bad-request", detail="'after' must be a whole number, 'kernel' a name")
    found: list[dict[str, Any]] = []
    sources: dict[str, str | None] = {}
    size = 0
    for number, record in enumerate(_all(kernels, wanted)):
        if number < after:
            continue
        text = record.pop("source")
        extra = 0 if record["source_digest"] in sources else len(json.dumps(text))
        size += len(json.dumps(record)) + extra
        if found and size > MAX_PAGE_BYTES:
            return {"records": found, "sources": sources, "next": number}
        found.append(record)
        sources[record["source_digest"]] = text
    return {"records": found, "sources": sources, "next": None}


def joined(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Put the sources of a page back into its records.

    >>> joined({"records": [{"source_digest": "d"}], "sources": {"d": "text"}})
    [{'source_digest': 'd', 'source': 'text'}]
    """
    sources = answer["sources"]
    return [
        {**record, "source": sources.get(record["source_digest"])} for record in answer["records"]
    ]


def grid_text(code: Any) -> str | None:  # noqa: ANN401 - a code object
    if code is None:
        return None
    try:
        return textwrap.dedent(inspect.getsource(code))[:_MAX_GRID_CHARS]
    except (OSError, TypeError, IndexError, SyntaxError):
        return None


def _all(kernels: Iterable[Kernel], wanted: str | None) -> Iterator[dict[str, Any]]:
    for kernel in kernels:
        if wanted is None or identity(kernel) == wanted:
            yield from records(kernel)


def _record(
    kernel: Kernel, source: Gathered, observation: Observation, cell: Cell
) -> dict[str, Any]:
    names: Sequence[str] = source.unresolved
    return {
        "kernel": identity(kernel),
        "source_digest": source.digest,
        "source": source.text,
        "unresolved": list(names),
        "launcher": "interpreter" if kernel.interpreted else "jit",
        "params": [argument.as_json() for argument in observation.arguments],
        "options": dict(observation.options),
        "grid": list(observation.grid),
        "grid_source": grid_text(observation.grid_code),
        "count": cell.count,
        "device_time": _device_time(cell),
    }


def _device_time(cell: Cell) -> dict[str, int] | None:
    """Return the device time of the timed launches of a key, if any; see `timing`."""
    if cell.timed == 0 and cell.idle == 0:
        return None
    return {
        "timed": cell.timed,
        "mean_ns": cell.total_ns // max(1, cell.timed),
        "least_ns": cell.least_ns,
        "idle": cell.idle,
    }
