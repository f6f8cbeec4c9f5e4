"""The recipes: changes to a kernel that have a name among the people who write kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from retuned.contract import Language, Solution
from retuned.lab.generators.recipes.input import Recipe, RecipeResult, Situation, none, some
from retuned.lab.generators.recipes.loop_rewrite import (
    CHUNKED,
    STRIDED,
    Loop,
    NotRewritable,
    rewrite,
)
from retuned.lab.generators.space_inference import VEC
from retuned.lab.generators.spaces import SpaceLike
from retuned.lab.subject import numpy_dtype

SPLITS = ("SPLIT_K", "SPLITS", "SPLIT", "K_SPLITS")
"""Parameters by which sources say into how many parts the reduction is cut."""
ROWS = ("ROWS", "XROWS", "TILE", "BLOCK_M", "ROWS_PER_PROGRAM")
"""Parameters by which sources say how many rows go together."""
_WARPS = "num_warps"
_WAVES = (1, 2, 4)
"""Programs per unit of the device that a persistent kernel is launched with."""
_CHUNKS = (2, 4)
"""Programs that one program takes over."""
_GUESSES = 2
"""Starting points of another structure that are filled up with parts."""
_MORE = 4
"""Rows are multiplied by this at most at a time."""


def split_k(at: Situation) -> RecipeResult:
    """Cut the reduction into parts that run beside each other, where few outputs leave units idle.

    That is a matrix product of few rows. A second step adds the parts up in a fixed order, so only
    a source that brings the parameter for it, and the step, can be split.
    """
    busy = at.programs
    if busy >= 2 * at.device.units > 0:
        return none(
            f"its {busy} programs keep all {at.device.units} units busy: splitting only adds work"
        )
    own = _own(at, SPLITS)
    if own is not None:
        return some(
            [at.changed({own: value}) for value in _choices(at, own)],
            because=f"{busy or 'few'} programs leave units idle; {own} cuts the reduction",
            otherwise=f"{own} has no other value that can be built",
        )
    others = [space for space in _others(at) if any(name in space.params for name in SPLITS)]
    return some(
        [each for space in others for each in _split(at, space)],
        because=f"{busy or 'few'} programs leave some of {at.device.units} units idle; "
        f"{', '.join(space.name for space in others)} cuts the reduction, and adds the parts up "
        "in a second step",
        otherwise="neither this source nor another of the definition has a parameter that splits "
        "the reduction, and one launch cannot add parts up in a fixed order",
    )


def _split(at: Situation, space: SpaceLike) -> list[Solution | None]:
    """Return guesses of a structure with as many parts as make the device busy, most likely first.

    Twice the units first, so that none waits for the last part; then as the structure guesses.
    """
    name = next(name for name in SPLITS if name in space.params)
    choices = sorted(value for value in space.params[name] if isinstance(value, int))
    made: list[Solution | None] = []
    for guess in at.starts(space)[:_GUESSES]:
        tiles = max(1, at.programs_of(guess) // int(guess.params[name]))
        enough = [n for n in choices if n * tiles >= 2 * at.device.units]
        for parts in (*enough[:1], *choices[::-1]):
            filled = at.variant(space.name, {**guess.params, name: parts})
            if filled is not None:  # deep products alone can be cut into many parts
                made.append(filled)
                break
        made.append(guess)
    return made


def persistent(at: Situation) -> RecipeResult:
    """Launch as many programs as the device runs at once, and let each take several parts."""
    if at.solution.language is not Language.TRITON:
        return none(
            "on a processor a launch has as many parts as threads: it is persistent already"
        )
    if at.programs <= at.device.units:
        return none(f"its {at.programs} programs fit the {at.device.units} units at once")
    values = [wave * at.device.units for wave in _WAVES if wave * at.device.units < at.programs]
    return _looped(
        at,
        STRIDED,
        values,
        because=f"{at.programs} programs take turns on {at.device.units} units; a loop in "
        "each saves their launches",
    )


def vectorised(at: Situation) -> RecipeResult:
    """Give each thread as much at a time as it can load at once."""
    if at.solution.language is not Language.TRITON:
        if VEC not in at.solution.params:
            return none(f"its source has no parameter {VEC}")
        return some(
            [at.changed({VEC: at.device.vector_bytes})],
            because=f"the processor's vectors are {at.device.vector_bytes} bytes wide",
            otherwise=f"it already uses vectors of {at.device.vector_bytes} bytes, or the source "
            "cannot",
        )
    elements = _held(at.solution)
    if not elements or _WARPS not in at.solution.params:
        return none("its block or its warps are not parameters")
    wide = min(numpy_dtype(spec).itemsize for spec in at.definition.inputs.values())
    least = max(1, at.device.vector_bytes // wide)
    warps = [n for n in _powers(at.device.most_warps) if elements // (n * at.device.lanes) >= least]
    fewer = [n for n in warps[-2:] if n != at.solution.params[_WARPS]]
    return some(
        [at.changed({_WARPS: n}) for n in reversed(fewer)],
        because=f"{elements} elements a block: with fewer warps each thread loads "
        f"{at.device.vector_bytes} bytes at once",
        otherwise=f"each thread holds {at.device.vector_bytes} bytes already, or no such point",
    )


def multi_row(at: Situation) -> RecipeResult:
    """Take several rows together: what they share is loaded once."""
    own = [name for name in ROWS if name in at.solution.params]
    if own:
        more = [
            at.changed({name: value})
            for name in own
            for value in _choices(at, name)
            if int(at.solution.params[name]) < value <= _MORE * int(at.solution.params[name])
        ]
        return some(
            more,
            because=f"{', '.join(own)}: more rows together share what they load",
            otherwise=f"{', '.join(own)}: no more rows together can be built",
        )
    others = [space for space in _others(at) if any(name in space.params for name in ROWS)]
    found = some(
        [at.start(space) for space in others],
        because=f"{', '.join(space.name for space in others)} takes several rows together",
        otherwise="no structure of the definition takes several rows together",
    )
    if found.solutions or at.solution.language is not Language.TRITON:
        return found
    if at.programs <= at.device.units:
        return none(f"its {at.programs} programs leave no unit more than one row")
    return _looped(
        at, CHUNKED, list(_CHUNKS), because="each program takes neighbouring rows one by one"
    )


def fused_epilogue(at: Situation) -> RecipeResult:
    """Finish the result while it is in registers, instead of writing it down in between."""
    if at.solution.scratch_bytes == 0:
        return none(
            "it keeps nothing in a workspace between its steps: what the definition computes is "
            "finished in one launch already"
        )
    found: list[Solution | None] = [
        at.changed({name: 0})
        for name, value in at.solution.params.items()
        if value == 1 and 0 in _choices(at, name)
    ]
    found += [at.start(space) for space in _others(at)]
    return some(
        [each for each in found if each is not None and each.scratch_bytes == 0],
        because=f"{at.solution.scratch_bytes} bytes of workspace are not written and read again",
        otherwise="every structure of the definition needs a workspace",
    )


def another_algorithm(at: Situation) -> RecipeResult:
    """Try the other structures of the definition where they are likely to be good."""
    return some(
        [at.start(space) for space in _others(at)],
        because=f"another structure than {at.solution.structure} computes the same",
        otherwise="the definition has no other structure",
    )


RECIPES: Mapping[str, Recipe] = {
    "another-algorithm": another_algorithm,
    "multi-row": multi_row,
    "split-k": split_k,
    "persistent": persistent,
    "vectorised": vectorised,
    "fused-epilogue": fused_epilogue,
}
"""By name, those first that change most."""


def _looped(at: Situation, loop: Loop, values: Iterable[int], *, because: str) -> RecipeResult:
    try:
        made = [rewrite(at.solution, at.definition, loop=loop, value=value) for value in values]
    except NotRewritable as error:
        return none(str(error))
    return some(made, because=because, otherwise="no number of programs makes sense")


def _own(at: Situation, names: Iterable[str]) -> str | None:
    return next((name for name in names if name in at.solution.params), None)


def _choices(at: Situation, name: str) -> tuple[int, ...]:
    if at.space is None:
        return ()
    return tuple(value for value in at.space.params.get(name, ()) if isinstance(value, int))


def _others(at: Situation) -> list[SpaceLike]:
    """Return the other structures, the likeliest first."""
    others = [space for space in at.tunable.spaces if space.name != at.solution.structure]
    return sorted(others, key=lambda space: (space.rank(at.axes), space.name))


def _held(solution: Solution) -> int:
    """Elements of a block: the product of its sizes; 0 where it has none."""
    sizes = [
        value
        for name, value in solution.params.items()
        if name.startswith(("BLOCK", "ROWS")) and isinstance(value, int)
    ]
    product = 1
    for size in sizes:
        product *= size
    return product if sizes else 0


def _powers(most: int) -> list[int]:
    return [1 << n for n in range(most.bit_length()) if 1 << n <= most]
