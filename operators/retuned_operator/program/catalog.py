"""The catalog as controllers ask it: what servers of a kind come with."""

from __future__ import annotations

from retuned import catalog
from retuned.contract import Language, Solution
from retuned.errors import UsageError
from retuned_operator.crds import TuningTarget
from retuned_operator.crds.target import Vendor


class CatalogKernels:
    """The `Kernels` of the catalog that this image ships."""

    def incumbent(self, definition: str, *, target: TuningTarget) -> Solution | None:
        """Return what such servers come with; None for a kernel that nobody knows."""
        cpu = target.spec.gpu.vendor is Vendor.CPU
        language = Language.CPU_CPP if cpu else Language.TRITON
        try:
            return catalog.get(definition, language=language).incumbent
        except UsageError:
            return None
