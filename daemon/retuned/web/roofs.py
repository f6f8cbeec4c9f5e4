"""What physics allows the kernels of the catalog, for the roofline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from retuned import catalog
from retuned.contract import Language
from retuned.lab.physics import GPU_PEAKS, Peak
from retuned.web.records import Roof, Roofs


def roofs_of(definition: str, shapes: Sequence[Mapping[str, int]], *, arch: str) -> Roofs | None:
    """Return what physics allows some shapes of a kernel of the catalog; None where unknown.

    Parameters
    ----------
    definition
        Kernel.
    shapes
        Lengths of the variable axes.
    arch
        Architecture that it was measured on.
    """
    peak: Peak | None = GPU_PEAKS.get(arch)
    languages = catalog.languages(definition) if peak is not None else ()
    if peak is None or not languages:
        return None
    language = Language.TRITON if Language.TRITON in languages else next(iter(languages))
    entry = catalog.get(definition, language=language)
    found = []
    for axes in shapes:
        try:
            cost = entry.cost(entry.definition.lengths(axes))
        except ValueError:  # measured by another version of the definition
            continue
        moved = cost.read_bytes + cost.write_bytes
        found.append(Roof(axes=dict(axes), flops=cost.flops, moved_bytes=moved))
    return Roofs(shapes=tuple(found), gflops=peak.gflops, gbytes_per_s=peak.gbytes_per_s)
