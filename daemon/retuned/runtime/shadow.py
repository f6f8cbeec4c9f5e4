"""Shadow checks: on sampled launches the incumbent also runs, and the two outputs are compared.

Which launches: in every block of `every` swapped launches of a shape bucket exactly one, at a
random place in the block. The rate is exact, no bucket is left out, and neither a model's layer
count nor a kernel that counts can fall into step with the checks. The first launch of a bucket is
always checked.

How: non-finite values must be in the same places with the same signs. Elsewhere the largest
absolute difference is put in units of what is allowed, ``tolerance * rms(incumbent's output)``. In
outputs of 16 and 8 bits two honest kernels may round to neighbours, so that one unit in the last
place of the element is taken off first; with 16 bits, of the rms where that is more, because such
kernels round on the way too. Integers must be equal; of int8, which quantised numbers are, one in a
hundred may differ by one.
"""

from __future__ import annotations

import ctypes
import math
import random
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from retuned.runtime.cusum import DECAY, PACE, Cusum
from retuned.runtime.rates import Rates
from retuned.runtime.spec import Key, Tensor

RATIO_CAP = 1e9
"""Stands for "nothing is allowed and something differs", so that records stay finite."""
TRIP_RATIO = 4.0
"""From here the runtime goes back by itself, without waiting for the daemon."""
_EWMA_WEIGHT = 0.05
_NEIGHBOURS_SHARE = 0.01
_WINDOW_BYTES = 4096
_WINDOWS = 16


@dataclass(frozen=True, slots=True)
class Comparison:
    """One check."""

    nonfinite: bool
    """NaN or Inf do not agree."""
    ratio: float
    """Largest difference in units of the allowed difference; 0 where `nonfinite`."""
    rms_ratio: float = 0.0
    """RMS of the difference in the same units; 0 where `nonfinite` and where nobody says."""


Compare = Callable[[Sequence[Tensor], Sequence[Tensor], float], Comparison]
"""(served outputs, the incumbent's outputs, tolerance) -> comparison."""


@dataclass(slots=True)
class Stratum:
    """One shape bucket under one order."""

    ran: int = 0
    """Launches that ran the variant."""
    held: int = 0
    """Launches that a canary's fraction left to the original."""
    check_at: int = 0
    """The launch after so many is the next to be checked."""
    block_end: int = 1
    """First launch of the next block; the first launch is a block of its own."""
    since_s: float = 0.0
    """When the bucket was first seen, monotonic seconds."""
    checks: int = 0
    """Launches compared."""
    step_checks: int = 0
    """Of those, since the live fraction was last changed."""
    decay: Cusum = field(default_factory=lambda: Cusum(DECAY))
    """Course of the log rms ratio."""
    pace: Cusum = field(default_factory=lambda: Cusum(PACE))
    """Course of "clearly slower than the incumbent"."""


def bucket(key: Key) -> Key:
    """Shape bucket of a key: lengths within a factor of two share one."""
    return tuple(length.bit_length() for length in key)


class Sampler:
    """Chooses the launches to check.

    Parameters
    ----------
    rates
        One launch in so many, per bucket; by the bucket's age where there are several.
    random_source
        Unpredictable to a kernel by default; a seeded one in tests.
    clock
        Monotonic seconds.
    """

    def __init__(
        self,
        rates: int | Rates,
        random_source: random.Random | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rates = rates if isinstance(rates, Rates) else Rates(rates)
        self._random = random_source or random.SystemRandom()
        self._clock = clock
        self._strata: dict[Key, Stratum] = {}

    def stratum(self, key: Key) -> Stratum:
        """Return the bucket of a key, the same object every time."""
        name = bucket(key)
        known = self._strata.get(name)
        if known is None:
            known = self._strata.setdefault(name, Stratum(since_s=self._clock()))
        return known

    def strata(self) -> dict[Key, Stratum]:
        """Return the buckets seen so far."""
        return self._strata.copy()

    def advance(self, stratum: Stratum) -> None:
        """Choose the next launch to check, one in the block after the present one."""
        every = self._rates.every(self._clock() - stratum.since_s)
        while True:
            stratum.check_at = stratum.block_end + self._random.randrange(every)
            stratum.block_end += every
            if stratum.check_at >= stratum.ran:  # else: other threads ran past that block
                return

    def ran(self) -> int:
        """Return the launches of all buckets."""
        return sum(stratum.ran for stratum in self._strata.copy().values())


@dataclass(slots=True)
class Stats:
    """What happened under one order; totals."""

    checks: int = 0
    """Launches compared."""
    mismatches: int = 0
    """Checks over the allowed difference, or with an input changed."""
    nonfinite: int = 0
    """Checks where NaN or Inf did not agree."""
    worst_ratio: float = 0.0
    """Largest ratio."""
    mean_ratio: float = 0.0
    """Exponentially weighted mean of the ratio over about the last 20 checks."""
    errors: int = 0
    """Launches that raised."""
    ineligible: dict[str, int] = field(default_factory=dict)
    """Launches within the guard that the variant could not take, by reason."""
    mismatched: int = 0
    """Elements over the allowed difference, of checks made aside."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Checks that were due and not made, or have no result, by reason."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held to write; checks and errors are rare."""

    def check(self, comparison: Comparison) -> None:
        """Fold one check in."""
        with self.lock:
            self.checks += 1
            if comparison.nonfinite:
                self.nonfinite += 1
                return
            first = self.checks - self.nonfinite == 1
            self.mismatches += comparison.ratio > 1.0
            self.worst_ratio = max(self.worst_ratio, comparison.ratio)
            step = comparison.ratio - self.mean_ratio
            self.mean_ratio += step if first else _EWMA_WEIGHT * step

    def error(self) -> int:
        """Count a launch that raised; return how many there are."""
        with self.lock:
            self.errors += 1
            return self.errors

    def drop(self, reason: str) -> None:
        """Count a check that was not made, or has no result."""
        with self.lock:
            self.dropped[reason] = self.dropped.get(reason, 0) + 1

    def skip(self, reason: str) -> None:
        """Count a launch the variant could not take."""
        with self.lock:
            self.ineligible[reason] = self.ineligible.get(reason, 0) + 1


def as_outputs(value: Any) -> tuple[Tensor, ...]:  # noqa: ANN401 - what a kernel returned
    """Return outputs as a tuple, one or several."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def compare_tensors(
    served: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float
) -> Comparison:
    """Compare PyTorch tensors.

    Raises
    ------
    ValueError
        If the number of outputs, a shape or an element type differs.
    """
    torch = sys.modules["torch"]
    if len(served) != len(expected):
        raise ValueError(f"{len(served)} outputs instead of {len(expected)}")
    worst = worst_rms = 0.0
    with torch.inference_mode():
        for ours, theirs in zip(served, expected, strict=True):
            if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
                raise ValueError(f"output {ours.shape} {ours.dtype}, not {theirs.shape}")
            one = _compare_pair(torch, ours, theirs, tolerance)
            if one.nonfinite:
                return one
            worst, worst_rms = max(worst, one.ratio), max(worst_rms, one.rms_ratio)
    return Comparison(nonfinite=False, ratio=worst, rms_ratio=worst_rms)


@dataclass(frozen=True, slots=True)
class Form:
    """What an element type is to a comparison."""

    floating: bool
    """Whether its elements are real numbers."""
    bits: int
    """Of one element."""
    eps: float = 0.0
    """Distance of 1 to the next number; 0 of whole numbers."""
    least_unit: float = 0.0
    """Distance of the smallest numbers; 0 of whole numbers."""
    neighbours: bool = False
    """Whether whole numbers may differ by one, in few places."""

    @property
    def narrow(self) -> bool:
        """Whether two honest kernels may round to neighbours."""
        return self.floating and self.bits <= 16


def form_of(torch: Any, tensor: Tensor) -> Form:  # noqa: ANN401 - the module
    """Return what the element type of a tensor is to a comparison."""
    if not tensor.is_floating_point():
        bits = 8 * tensor.element_size()
        return Form(floating=False, bits=bits, neighbours=tensor.dtype == torch.int8)
    about = torch.finfo(tensor.dtype)
    unit = about.smallest_normal * about.eps
    return Form(floating=True, bits=about.bits, eps=about.eps, least_unit=unit)


def _compare_pair(torch: Any, ours: Tensor, theirs: Tensor, tolerance: float) -> Comparison:  # noqa: ANN401
    if ours.numel() == 0:
        return Comparison(nonfinite=False, ratio=0.0)
    form = form_of(torch, ours)
    if not form.floating:
        return Comparison(nonfinite=False, ratio=_integer_ratio(torch, ours, theirs, form))
    wide = torch.float64 if ours.dtype == torch.float64 else torch.float32
    ours, theirs = ours.to(wide), theirs.to(wide)
    difference = (ours - theirs).abs_()
    largest = float(difference.max())
    if not math.isfinite(largest):  # the rare case pays for the masks
        finite = theirs.isfinite()
        agree = torch.where(theirs.isnan(), ours.isnan(), ours == theirs) | finite
        if not bool((ours.isfinite() == finite).all()) or not bool(agree.all()):
            return Comparison(nonfinite=True, ratio=0.0)
        difference, ours, theirs = difference[finite], ours[finite], theirs[finite]
        largest = float(difference.max()) if difference.numel() else 0.0
    if largest == 0.0:
        return Comparison(nonfinite=False, ratio=0.0)
    rms = _rms(torch, theirs)
    beyond = largest
    if form.narrow:
        least = rms if form.bits == 16 else 0.0
        unit = torch.maximum(ours.abs(), theirs.abs()).clamp_(min=least).mul_(form.eps)
        unit.clamp_(min=form.least_unit)
        beyond = max(0.0, float((difference - unit).max()))
    return float_comparison(
        largest=largest,
        beyond=beyond,
        rms=rms,
        rms_off=_rms(torch, difference),
        tolerance=tolerance,
    )


def float_comparison(
    *, largest: float, beyond: float, rms: float, rms_off: float, tolerance: float
) -> Comparison:
    """Judge real numbers that are all finite.

    Parameters
    ----------
    largest
        Largest absolute difference.
    beyond
        The same after what rounding to neighbours allows is taken off.
    rms, rms_off
        Of the incumbent's output, and of the difference.
    tolerance
        Allowed difference, as a share of `rms`.
    """
    if largest == 0.0:
        return Comparison(nonfinite=False, ratio=0.0)
    allowed = tolerance * rms
    off = min(RATIO_CAP, rms_off / allowed) if allowed > 0.0 else 0.0
    if allowed > 0.0 or beyond == 0.0:
        ratio = min(RATIO_CAP, beyond / (allowed or 1.0))
        return Comparison(nonfinite=False, ratio=ratio, rms_ratio=off)
    return Comparison(nonfinite=False, ratio=RATIO_CAP)


def integer_ratio(form: Form, *, unequal: int, largest: float, size: int) -> float:
    """Return 0 where equal, the cap where not; neighbours of int8 count by their share."""
    if unequal == 0:
        return 0.0
    if not form.neighbours or largest > 1:
        return RATIO_CAP
    return unequal / max(1.0, _NEIGHBOURS_SHARE * size)


def _rms(torch: Any, values: Tensor) -> float:  # noqa: ANN401
    return float(torch.linalg.vector_norm(values, dtype=torch.float64)) / math.sqrt(values.numel())


def _integer_ratio(torch: Any, ours: Tensor, theirs: Tensor, form: Form) -> float:  # noqa: ANN401
    if torch.equal(ours, theirs):
        return 0.0
    if not form.neighbours:
        return RATIO_CAP
    difference = (ours.to(torch.int16) - theirs.to(torch.int16)).abs_()
    size, unequal = int(difference.numel()), int(difference.count_nonzero())
    return integer_ratio(form, unequal=unequal, largest=int(difference.max()), size=size)


def fingerprint(tensors: Iterable[Tensor]) -> int:
    """Checksum of contiguous tensors: whole where small, else of windows spread over them.

    A variant must not write to its inputs; what matters is to notice a kernel that does, not to
    prove that no byte changed. On a GPU the sums are made there and one number a tensor is copied.
    """
    total = 0
    for tensor in tensors:
        if not tensor.is_cpu:
            total = zlib.crc32(_device_sum(tensor).to_bytes(8, "little", signed=True), total)
            continue
        size = tensor.numel() * tensor.element_size()
        for start, length in _windows(size):
            view = (ctypes.c_char * length).from_address(tensor.data_ptr() + start)
            total = zlib.crc32(view, total)
    return total


def _device_sum(tensor: Tensor) -> int:
    """Return the sum of the windows' bytes, each weighted by its place; 64 bits, wrapping."""
    if tensor.numel() == 0:
        return 0
    flat = glimpse(tensor)
    places = sys.modules["torch"].arange(1, flat.numel() + 1, device=flat.device)
    return int((flat * (places * 0x9E3779B1 % 2**31)).sum())


def glimpse(tensor: Tensor) -> Tensor:
    """Return the bytes of a contiguous tensor on a device: all where small, else of its windows.

    What is small is no copy.
    """
    torch = sys.modules["torch"]
    flat = tensor.detach().view(-1).view(torch.uint8)
    windows = _windows(int(flat.numel()))
    if len(windows) > 1:  # steps a little shorter than the CPU's: one strided view, and the end
        length, step = windows[0][1], windows[1][0] - windows[0][0]
        spread = torch.as_strided(flat, (len(windows), length), (step, 1)).reshape(-1)
        flat = torch.cat((spread, flat[-length:]))
    return flat


def _windows(size: int) -> list[tuple[int, int]]:
    if size <= _WINDOW_BYTES * _WINDOWS:
        return [(0, size)] if size else []
    last = size - _WINDOW_BYTES
    return [(index * last // (_WINDOWS - 1), _WINDOW_BYTES) for index in range(_WINDOWS)]
