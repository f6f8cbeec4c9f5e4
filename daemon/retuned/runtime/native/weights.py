"""Weights in the layouts that variants need, packed off the request path.

A packed copy belongs to one tensor object: it is found by identity and used only while that object
exists, its storage has not moved and PyTorch has not counted a write to it. (Only the shadow checks
detect writes that PyTorch does not count, through ``.data`` or to tensors created in inference
mode.) A weight without a copy is queued, the incumbent serves, and the control thread packs it.
"""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from retuned.runtime.native.memory import repack
from retuned.runtime.schema import Refused, Tensor

log = logging.getLogger(__name__)

MAX_PENDING = 4096
"""Weights queued for packing; a later launch queues a weight again that did not fit."""
MAX_PACKED_BYTES = 8 << 30


@dataclass(frozen=True, slots=True)
class _Entry:
    reference: weakref.ref[Any]
    pointer: int
    version: int
    packed: Tensor


class PackedWeights:
    """Packed copies of one slot's weights, shared by its variants.

    Parameters
    ----------
    served
        Returns the weights that this process serves with, of all slots.
    """

    def __init__(
        self,
        limit_bytes: int = MAX_PACKED_BYTES,
        *,
        served: Callable[[], Sequence[Tensor]] = tuple,
    ) -> None:
        self.served = served
        self._entries: dict[tuple[int, str], _Entry] = {}
        self._pending: dict[tuple[int, str], weakref.ref[Any]] = {}
        self._bytes = 0
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()

    def find(self, weight: Tensor, layout: str) -> Tensor | None:
        """Return the packed copy, or queue the weight and return None."""
        identity = (id(weight), layout)
        entry = self._entries.get(identity)
        if (
            entry is not None
            and entry.pointer == weight.data_ptr()
            and entry.version == _version(weight)
            and entry.reference() is weight
        ):
            return entry.packed
        if len(self._pending) < MAX_PENDING:
            self._pending[identity] = weakref.ref(weight)
        return None

    def pack(self, weight: Tensor, layout: str) -> None:
        """Create the copy of one weight, unless it exists.

        Raises
        ------
        Refused
            ``layout-unsupported`` or ``pack-memory``.
        """
        identity = (id(weight), layout)
        version, pointer = _version(weight), weight.data_ptr()
        entry = self._entries.get(identity)
        if entry is not None and entry.reference() is weight:
            if (entry.version, entry.pointer) == (version, pointer):
                return
            self._gone(identity)
        size = weight.numel() * weight.element_size()
        if self._bytes + size > self._limit_bytes:
            raise Refused("pack-memory", detail=f"packed weights exceed {self._limit_bytes} B")
        try:
            torch = sys.modules["torch"]
            with torch.inference_mode():
                packed = repack(weight, layout).contiguous()
            if packed.is_cuda:  # launches may use it from any stream
                torch.cuda.current_stream(packed.device).synchronize()
        except (ValueError, RuntimeError, TypeError) as error:
            raise Refused("layout-unsupported", detail=f"{layout}: {error!r:.200}") from error
        if _version(weight) != version or weight.data_ptr() != pointer:
            return  # written to while packing, so mixed; a launch will queue it again
        with self._lock:
            self._gone(identity)
            reference = weakref.ref(weight, lambda _: self._gone(identity))
            self._entries[identity] = _Entry(reference, pointer, version, packed)
            self._bytes += size

    def pack_pending(self) -> int:
        made = 0
        for identity in list(self._pending):
            reference = self._pending.pop(identity, None)
            weight = reference() if reference is not None else None
            if weight is None:
                continue
            try:
                self.pack(weight, identity[1])
                made += 1
            except Refused as error:
                log.warning("a weight is not packed, the incumbent serves it: %s", error)
        return made

    def keep_layouts(self, layouts: Collection[str]) -> None:
        """Drop copies in layouts that no loaded variant needs."""
        with self._lock:
            for identity in list(self._entries):
                if identity[1] not in layouts:
                    self._gone(identity)

    def __len__(self) -> int:
        return len(self._entries)

    def _gone(self, identity: tuple[int, str]) -> None:
        """Drop the copy of a destroyed weight; runs wherever its last reference was dropped."""
        entry = self._entries.pop(identity, None)
        if entry is not None:
            self._bytes -= entry.packed.numel() * entry.packed.element_size()


def _version(tensor: Tensor) -> int:
    """Return PyTorch's count of writes; tensors of inference mode have none."""
    return -1 if tensor.is_inference() else int(tensor._version)
