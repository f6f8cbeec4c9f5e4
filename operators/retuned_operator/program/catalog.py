"""The catalog as controllers ask it: what servers of a kind come with."""

from __future__ import annotations

from collections.abc import Mapping

from retuned import catalog
from retuned.catalog.own import OwnDefinition, entry_of
from retuned.contract import Language, Solution
from retuned.errors import UsageError
from retuned.lifting.kept import Geometries
from retuned.stages.profile import ProfileSettings
from retuned_operator.controllers.ports import Dims, LiveShapes
from retuned_operator.crds import TuningTarget
from retuned_operator.crds.target import Vendor
from retuned_operator.program.live_kernels import LiveKernels


class CatalogKernels:
    """The `Kernels` of the catalog that this image ships, and of what pods have lifted.

    Parameters
    ----------
    live
        What pods have lifted; None knows nothing of live kernels.
    buckets
        How profiles round lengths.
    """

    def __init__(
        self, live: LiveKernels | None = None, *, buckets: ProfileSettings | None = None
    ) -> None:
        self._live = live
        self._buckets = buckets or ProfileSettings()

    def incumbent(self, definition: str, *, target: TuningTarget) -> Solution | None:
        """Return what such servers come with; None for a kernel that nobody knows."""
        entry = self._entry(definition, target)
        return None if entry is None else entry.incumbent

    def structures(self, definition: str, *, target: TuningTarget) -> tuple[str, ...]:
        """Return the source structures that a search can look at; empty where nobody knows any."""
        entry = self._entry(definition, target)
        return () if entry is None else tuple(space.name for space in entry.spaces)

    def recognise(
        self, kernel: str, dims: Dims, dtypes: tuple[str, ...], *, target: TuningTarget
    ) -> tuple[str, Mapping[str, int]] | None:
        """Return definition and variable axes of a launch; None if nobody knows it."""
        binding = catalog.recognise(kernel, dims, dtypes)
        if binding is None or _language_of(target) not in catalog.languages(binding.definition):
            return None
        return binding.definition, binding.axes

    def live_shapes(self, *, target: TuningTarget) -> LiveShapes:
        """Return what says which shapes of live kernels launches may have had."""
        records = () if self._live is None else self._live.every(target.full_name)
        found = Geometries(records, buckets=self._buckets)
        return lambda stat: [(share.workload, share.part) for share in found.shares_of(stat)]

    def is_live(self, definition: str, *, target: TuningTarget) -> bool:
        """Whether it is a kernel that servers have no slot for before it is swapped."""
        return self._own(definition, target) is not None

    def _own(self, definition: str, target: TuningTarget) -> OwnDefinition | None:
        return None if self._live is None else self._live.find(target.full_name, definition)

    def _entry(self, definition: str, target: TuningTarget) -> catalog.KernelEntry | None:
        own = self._own(definition, target)
        if own is not None:
            return entry_of(own, own.languages[0])
        try:
            return catalog.get(definition, language=_language_of(target))
        except UsageError:
            return None


def _language_of(target: TuningTarget) -> Language:
    cpu = target.spec.gpu.vendor is Vendor.CPU
    return Language.CPU_CPP if cpu else Language.TRITON
