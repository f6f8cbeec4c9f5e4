"""Launch groups of one live kernel that may share a definition: same types, same real numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retuned.contract import DType
from retuned.lifting.records import NotLifted, Observation
from retuned.lifting.shapes import Launch
from retuned.runtime.triton.bind import LAUNCH_OPTIONS

_HARMLESS = {
    "num_ctas": (None, 1),
    "maxnreg": (None,),
    "enable_fp_fusion": (None, True),
    "launch_cooperative_grid": (None, False),
    "debug": (None, False),
}


_LEAST_PART = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Launches with the same kinds and types of arguments."""

    observations: tuple[Observation, ...]
    """The most frequent first."""

    @property
    def first(self) -> Observation:
        return self.observations[0]

    @property
    def count(self) -> int:
        return sum(each.count for each in self.observations)

    def parts(self) -> tuple[Group, ...]:
        """Return a group per choice of constexprs and options, the most frequent first.

        Raises
        ------
        NotLifted
            As `options_of`.
        """
        return tuple(Group(observations=each) for each in self.points().values())

    @property
    def dtypes(self) -> dict[str, DType]:
        pointers = self.first.of_kind("pointer")
        found = {name: param.element for name, param in pointers.items()}
        return {name: dtype for name, dtype in found.items() if dtype is not None}

    @property
    def launches(self) -> tuple[Launch, ...]:
        return tuple(launch_of(each) for each in self.observations)

    def points(self) -> dict[tuple[object, ...], tuple[Observation, ...]]:
        """Return launches by integer constexprs and options, the most frequent first.

        Rare ones are left out: an autotuner tried them and did not choose them.
        """
        found: dict[tuple[object, ...], list[Observation]] = defaultdict(list)
        for each in self.observations:
            key = (tuple(launch_of(each).constants.items()), tuple(options_of(each).items()))
            found[key].append(each)
        counts = {key: sum(each.count for each in seen) for key, seen in found.items()}
        least = _LEAST_PART * sum(counts.values())
        ranked = sorted(found, key=lambda key: -counts[key])
        return {key: tuple(found[key]) for key in ranked if counts[key] >= least}


def groups_of(observations: Sequence[Observation]) -> tuple[Group, ...]:
    found: dict[tuple[object, ...], list[Observation]] = defaultdict(list)
    for each in observations:
        found[_kind_of(each)].append(each)
    return tuple(Group(observations=tuple(each)) for each in found.values())


def _kind_of(each: Observation) -> tuple[object, ...]:
    described: list[tuple[object, ...]] = []
    for param in each.params:
        said: object = None
        if param.kind == "pointer":
            said = param.element
        elif param.kind == "float" or (param.kind == "constexpr" and not _is_whole(param.value)):
            said = repr(param.value)
        described.append((param.name, param.kind, said))
    return (each.kernel, each.source_digest, each.source, tuple(described))


def launch_of(each: Observation) -> Launch:
    return Launch(
        ints={n: int(p.value) for n, p in each.of_kind("int").items() if p.value is not None},
        numels={n: p.numel or 0 for n, p in each.of_kind("pointer").items()},
        constants={
            n: p.value for n, p in each.of_kind("constexpr").items() if type(p.value) is int
        },
        grid=each.grid,
    )


def options_of(each: Observation) -> dict[str, int]:
    """Return launch options that a variant may have.

    Raises
    ------
    NotLifted
        ``option-unsupported``.
    """
    found: dict[str, int] = {}
    for name, value in sorted(each.options.items()):
        if name in LAUNCH_OPTIONS:
            if type(value) is int and value in LAUNCH_OPTIONS[name]:
                found[name] = value
            elif value is not None:
                raise NotLifted("option-unsupported", detail=f"{name} is {value!r:.40}")
        elif name in _HARMLESS and value not in _HARMLESS[name]:
            raise NotLifted("option-unsupported", detail=f"{name} is {value!r:.40}")
    return found


def other_constants(each: Observation) -> Mapping[str, object]:
    return {n: p.value for n, p in each.of_kind("constexpr").items() if not _is_whole(p.value)}


def _is_whole(value: object) -> bool:
    return type(value) is int
