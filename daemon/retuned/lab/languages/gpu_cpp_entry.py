"""Entry check of a device source: its head, and parameters in the definition's types and order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from retuned.contract import Definition, DType, Solution
from retuned.lab.languages.cpp_lexer import ContractViolated

_TYPES: Mapping[DType, tuple[str, ...]] = {
    DType.FLOAT64: ("double",),
    DType.FLOAT32: ("float",),
    DType.FLOAT16: ("fp16",),
    DType.BFLOAT16: ("bf16",),
    DType.FLOAT8_E4M3FN: ("fp8_e4m3fn",),
    DType.FLOAT8_E4M3FNUZ: ("fp8_e4m3fnuz",),
    DType.INT64: ("index_t", "long long"),
    DType.INT32: ("int", "i32"),
    DType.INT8: ("i8", "signed char"),
    DType.UINT8: ("u8", "unsigned char"),
    DType.BOOL: ("bool",),
}
_AXIS_TYPES = ("index_t", "long long")


def check_entry(tokens: list[str], solution: Solution, definition: Definition) -> None:
    """Require pointers of the definition's types, then every axis as index_t.

    Raises
    ------
    ContractViolated
        If its parameters differ.
    """
    places = [at for at, token in enumerate(tokens) if token == "__global__"]
    if len(places) != 1:
        raise ContractViolated(f"the source defines one __global__ function, '{solution.entry}'")
    opening = list(_entry_head(tokens, places[0] - 2))[-1][1]
    given = _split(tokens[opening + 1 : _closing(tokens, opening)])
    expected: list[tuple[str, tuple[str, ...], bool, bool]] = [
        (name, _TYPES[spec.dtype], True, True) for name, spec in definition.inputs.items()
    ]
    expected += [
        (name, _TYPES[spec.dtype], True, False) for name, spec in definition.outputs.items()
    ]
    if solution.scratch_bytes:
        expected.append(("scratch", ("float",), True, False))
    expected += [(name, _AXIS_TYPES, False, False) for name in definition.axes]
    if len(given) != len(expected):
        names = ", ".join(name for name, *_ in expected)
        raise ContractViolated(
            f"'{solution.entry}' has {len(given)} parameters; they are {names}: tensors, then axes"
        )
    for words, (name, types, pointer, constant) in zip(given, expected, strict=True):
        resolved = [str(solution.params.get(word, word)) for word in words]
        if not _fits(resolved, types, pointer=pointer, constant=constant):
            wanted = f"{'const ' if constant else ''}{types[0]}{'*' if pointer else ''}"
            raise ContractViolated(
                f"parameter '{' '.join(words)[:80]}' of '{solution.entry}' is '{wanted} {name}'"
            )


def _split(tokens: Sequence[str]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for token in tokens:
        if token == ",":
            parts.append([])
        else:
            parts[-1].append(token)
    return parts if parts != [[]] else []


def _fits(words: list[str], types: tuple[str, ...], *, pointer: bool, constant: bool) -> bool:
    kept = [word for word in words if word not in ("const", "*", "__restrict__")]
    star = words.index("*") if "*" in words else len(words)
    return (
        words.count("*") == int(pointer)
        and " ".join(kept[:-1]) in types
        and kept[-1].isidentifier()
        and (not pointer or ("const" in words[:star]) == constant)
    )


def is_entry(tokens: Sequence[str], index: int, entry: str) -> bool:
    head = [token for token, _ in _entry_head(tokens, index)]
    return head[:4] == ["extern", '"C"', "__global__", "void"] and head[4:6] == [entry, "("]


def _entry_head(tokens: Sequence[str], index: int) -> Iterator[tuple[str, int]]:
    """Yield the six tokens of an entry's head with their positions, without launch bounds."""
    at, found = index, 0
    while at < len(tokens) and found < 6:
        if tokens[at] == "__launch_bounds__":
            at = _closing(tokens, at + 1) + 1
            continue
        yield tokens[at], at
        at, found = at + 1, found + 1


def _closing(tokens: Sequence[str], opening: int) -> int:
    depth = 0
    for at in range(opening, len(tokens)):
        depth += (tokens[at] == "(") - (tokens[at] == ")")
        if depth == 0:
            return at
    raise ContractViolated("a parenthesis does not close")
