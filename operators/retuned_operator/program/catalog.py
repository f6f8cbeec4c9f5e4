"""The catalog as controllers ask it: what servers of a kind come with."""

from __future__ import annotations

from collections.abc import Mapping

from retuned import catalog
from retuned.contract import Language, Solution
from retuned.errors import UsageError
from retuned_operator.controllers.ports import Dims
from retuned_operator.crds import TuningTarget
from retuned_operator.crds.target import Vendor


class CatalogKernels:
    """The `Kernels` of the catalog that this image ships."""

    def incumbent(self, definition: str, *, target: TuningTarget) -> Solution | None:
        """Return what such servers come with; None for a kernel that nobody knows."""
        try:
            return catalog.get(definition, language=_language_of(target)).incumbent
        except UsageError:
            return None

    def structures(self, definition: str, *, target: TuningTarget) -> tuple[str, ...]:
        """Return the source structures that a search can look at; empty where nobody knows any."""
        try:
            entry = catalog.get(definition, language=_language_of(target))
        except UsageError:
            return ()
        return tuple(space.name for space in entry.spaces)

    def recognise(
        self, kernel: str, dims: Dims, dtypes: tuple[str, ...], *, target: TuningTarget
    ) -> tuple[str, Mapping[str, int]] | None:
        """Return definition and variable axes of a launch; None if nobody knows it."""
        binding = catalog.recognise(kernel, dims, dtypes)
        if binding is None or _language_of(target) not in catalog.languages(binding.definition):
            return None
        return binding.definition, binding.axes


def _language_of(target: TuningTarget) -> Language:
    cpu = target.spec.gpu.vendor is Vendor.CPU
    return Language.CPU_CPP if cpu else Language.TRITON
