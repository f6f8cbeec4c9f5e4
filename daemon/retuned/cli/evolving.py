"""Whether the package that searches with a language model is there, for ``retuned doctor``."""

from __future__ import annotations

from collections.abc import Iterator

from retuned.adapters.backend_process import RELEASES, missing_backend
from retuned.cli.probe import Fact, Level, Probe, fact
from retuned.settings import Settings

_ASK = "import importlib.metadata as m, {0}; print(m.version({0!r}))"


def backends(probe: Probe, settings: Settings) -> Iterator[Fact]:
    """Yield a fact on the package of `evolve_backend`; none where the search is our own."""
    backend, python = settings.evolve_backend, settings.evolve_backend_python
    if backend == "own":
        return
    advice = missing_backend(backend)
    if python is None:
        yield fact(
            "evolve-backend",
            False,
            f"{backend}, and evolve_backend_python is not set",
            f"`retuned run` does not start like that: {advice}",
            lacking=Level.MISSING,
        )
        return
    said = (probe.run([str(python), "-I", "-c", _ASK.format(backend)]) or "").strip()
    yield fact(
        "evolve-backend",
        bool(said),
        f"{backend} {said}" if said else f"{python} cannot import {backend}",
        f"no variant comes from it; {advice}",
    )
    tried = RELEASES[backend]
    if said and said != tried:
        yield Fact(
            name="evolve-backend-release",
            level=Level.LIMITED,
            value=said,
            advice=f"{tried} was tried with this Retuned; other releases may ask differently",
        )
