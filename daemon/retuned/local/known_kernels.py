"""The catalog as the loop asks for it: kernels of one language, with this machine's roofline."""

from __future__ import annotations

from collections.abc import Mapping

from retuned import catalog
from retuned.contract import Language, Solution
from retuned.errors import UsageError


class KnownKernels:
    """Kernels of the catalog.

    Parameters
    ----------
    language
        Language of the server's kernels, and so of the variants.
    gflops
        Float32 operations per second that one core, or the GPU, reaches at best, in 1e9; 0 means
        unknown.
    gbytes_per_s
        Bytes per second that it can move at best, in 1e9; 0 means unknown.
    """

    def __init__(
        self,
        *,
        language: Language = Language.CPU_CPP,
        gflops: float = 0.0,
        gbytes_per_s: float = 0.0,
    ) -> None:
        self._language = language
        self._gflops = gflops
        self._gbytes_per_s = gbytes_per_s

    def recognise(
        self, kernel: str, dims: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]
    ) -> tuple[str, Mapping[str, int]] | None:
        """Return definition and variable axes of a launch; None if nobody knows it here."""
        binding = catalog.recognise(kernel, dims, dtypes)
        if binding is None or self._language not in catalog.languages(binding.definition):
            return None
        return binding.definition, binding.axes

    def incumbent(self, definition: str) -> Solution:
        """Return the variant that the server comes with."""
        return self._entry(definition).incumbent

    def family(self, definition: str) -> str:
        """Return the operator type; empty for one that nobody knows any more.

        A user's own definition goes with its file; what was found about it stays in the store.
        """
        try:
            return self._entry(definition).definition.op_type
        except UsageError:
            return ""

    def audited(self, definition: str) -> tuple[str, ...]:
        """Return the structure that runs in production: its other parameters are tried first."""
        return (self._entry(definition).incumbent.structure,)

    def structures(self, definition: str) -> tuple[str, ...]:
        """Return all source structures."""
        return tuple(space.name for space in self._entry(definition).spaces)

    def floor_ns(self, definition: str, axes: Mapping[str, int]) -> int:
        """Return the roofline time; 0 where unknown."""
        if self._gflops <= 0.0 or self._gbytes_per_s <= 0.0:
            return 0
        try:
            entry = self._entry(definition)
        except UsageError:
            return 0
        floor_us = entry.floor_us(axes, gflops=self._gflops, gbytes_per_s=self._gbytes_per_s)
        return int(floor_us * 1e3)

    def _entry(self, definition: str) -> catalog.KernelEntry:
        return catalog.get(definition, language=self._language)
