"""Data flow of a kernel's arguments through its text, helpers included.

It follows statements in their order. Where branches meet and loops repeat, a name holds the values
of all its assignments. Branches that Triton decides at compile time are resolved.

An abstract value records its origin and, where possible, its compile-time value; device code is not
run.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from retuned.lifting.compile_time import UNKNOWN, Plain, Unknown, compared
from retuned.lifting.dialect import ATOMICS, DEVICE_LIBRARY, TYPE_FACTS
from retuned.lifting.records import NotLifted
from retuned.lifting.source import Source

Tag = tuple[str, str]
"""Origin of a value: ``ptr`` (a pointer's address), ``val`` (the memory there), ``arg`` (a numeric
argument), ``pid`` (the program id of a dimension), ``tile`` (a range), ``type`` (the type of a
pointer).
"""


@dataclass(frozen=True, slots=True)
class Value:
    tags: frozenset[Tag] = frozenset()
    known: Plain | Unknown = UNKNOWN

    def named(self, kind: str) -> frozenset[str]:
        return frozenset(name for which, name in self.tags if which == kind)


NOTHING = Value()


def merged(values: Iterable[Value]) -> Value:
    return Value(frozenset().union(*(value.tags for value in values)))


def truth(value: Value) -> bool | None:
    return None if isinstance(value.known, Unknown) else bool(value.known)


_MOST_CALLS = 4_000
_MOST_WORK = 500_000
_MOST_ROUNDS = 12
_DEEPEST = 12


@dataclass(slots=True)
class Flow:
    loaded: set[str] = field(default_factory=set)
    stored: set[str] = field(default_factory=set)
    scattered: set[str] = field(default_factory=set)
    """Pointers written at loaded indices: other elements keep their contents."""
    atomic: set[str] = field(default_factory=set)
    places: set[str] = field(default_factory=set)
    """Pointers whose numbers become indices or counts: an address, the end of a loop."""
    moved: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    plain: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    placed: set[int] = field(default_factory=set)
    pairs: set[tuple[str, str]] = field(default_factory=set)
    """(number, constexpr): ranges of the constexpr's length are compared with the number."""
    ranges: set[str] = field(default_factory=set)
    steps: set[str] = field(default_factory=set)
    """Constexprs that are loop steps, or that divide a number rounding up."""
    dots: bool = False
    loops: bool = False
    nodes: dict[tuple[str, str], ast.AST] = field(default_factory=dict)
    """(use, pointer) -> where it was found first; `use` is ``place`` or ``atomic``."""

    def line(self, use: str, pointers: Iterable[str]) -> str:
        """Return the text of the first use of one of the pointers."""
        found = (self.nodes.get((use, name)) for name in sorted(pointers))
        return next((ast.unparse(node) for node in found if node is not None), "")

    def note(self, use: str, pointers: Iterable[str], node: ast.AST) -> None:
        for name in pointers:
            self.nodes.setdefault((use, name), node)


def flow_of(
    source: Source, *, pointers: frozenset[str], constants: Mapping[str, Plain | Unknown]
) -> Flow:
    """Follow a kernel's arguments through its text.

    `constants` are parameters whose value Triton compiles in.

    Raises
    ------
    NotLifted
        ``pointer-stored``, ``pointer-of-pointers`` or ``flow-too-deep``.
    """
    found = Flow()
    given: dict[str, Value] = {}
    for name in source.parameters:
        if name in pointers:
            given[name] = Value(frozenset({("ptr", name)}))
        elif name in constants:
            given[name] = Value(frozenset({("arg", name)}), constants[name])
        else:
            given[name] = Value(frozenset({("arg", name)}))
    follower = _Follower(source, found, frozenset(constants))
    try:
        follower.call(source.entry, given)
    except RecursionError as error:
        raise NotLifted("flow-too-deep", detail="helpers are nested too deeply") from error
    return found


class _Follower:
    """Walks through functions and records their effects in a `Flow`."""

    def __init__(self, source: Source, found: Flow, constants: frozenset[str]) -> None:
        self.source = source
        self.found = found
        self.constants = constants
        self.globals = {name: _literal(node) for name, node in source.constants.items()}
        self._answers: dict[tuple[object, ...], Value] = {}
        self._depth = 0
        self.spent = 0
        """Count of visited nodes."""

    def call(self, name: str, given: Mapping[str, Value]) -> Value:
        key = (name, tuple(sorted(given.items(), key=lambda item: item[0])))
        if key in self._answers:
            return self._answers[key]
        if self._depth >= _DEEPEST or len(self._answers) >= _MOST_CALLS:
            raise NotLifted("flow-too-deep", detail=f"'{name}' is called too often or deeply")
        self._depth += 1
        self._answers[key] = NOTHING
        answer = _Body(self, dict(given)).run(self.source.functions[name])
        self._depth -= 1
        self._answers[key] = answer
        return answer


def _joined(one: Mapping[str, Value], other: Mapping[str, Value]) -> dict[str, Value]:
    """Return the names where two ways meet."""
    found = {**one, **other}
    for name in one.keys() & other.keys():
        if one[name] != other[name]:
            found[name] = merged([one[name], other[name]])
    return found


def _literal(node: ast.expr) -> Value:
    inner = node.args[0] if isinstance(node, ast.Call) else node
    try:
        return Value(known=ast.literal_eval(inner))
    except ValueError:
        return NOTHING


class _Body:
    def __init__(self, follower: _Follower, names: dict[str, Value]) -> None:
        self._follower = follower
        self._found = follower.found
        self._names = names
        self._returned: list[Value] = []
        self._jumping = 0
        """Count of surrounding loops with a ``break`` or ``continue``."""

    def run(self, function: ast.FunctionDef) -> Value:
        for argument, default in zip(
            reversed(function.args.args), reversed(function.args.defaults), strict=False
        ):
            self._names.setdefault(argument.arg, self._value(default))
        self._block(function.body)
        return merged(self._returned) if len(self._returned) != 1 else self._returned[0]

    def _block(self, body: Iterable[ast.stmt]) -> None:
        for statement in body:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.If):
            self._if(node)
        elif isinstance(node, ast.For):
            self._for(node)
        elif isinstance(node, ast.While):
            self._found.loops = True
            self._repeat(node)
        elif isinstance(node, ast.Assign):
            self._assign(node.targets[0], node.value)
            for target in node.targets[1:]:
                self._bind(target, self._value(node.value))
        elif isinstance(node, ast.AugAssign):
            self._bind(node.target, self._binary(node.target, node.op, node.value))
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._bind(node.target, self._value(node.value))
        elif isinstance(node, ast.Return):
            self._returned.append(NOTHING if node.value is None else self._value(node.value))
        elif isinstance(node, ast.Expr):
            self._value(node.value)

    def _for(self, node: ast.For) -> None:
        bounds = self._value(node.iter)
        self._place(bounds, node.iter)
        if isinstance(node.iter, ast.Call):
            self._found.loops |= _word(node.iter.func) != "static_range"
            for step in node.iter.args[2:]:
                self._found.steps |= self._value(step).named("arg") & self._follower.constants
        self._repeat(node, Value(bounds.tags))

    def _if(self, node: ast.If) -> None:
        held = truth(self._value(node.test))
        if held is not None:
            self._block(node.body if held else node.orelse)
            return
        before = dict(self._names)
        self._block(node.body)
        after, self._names = self._names, before
        self._block(node.orelse)
        self._names = _joined(after, self._names)

    def _repeat(self, node: ast.For | ast.While, each: Value = NOTHING) -> None:
        """Follow a loop until no name gets another value; it may also not run at all."""
        jumps = any(isinstance(part, ast.Break | ast.Continue) for part in ast.walk(node))
        self._jumping += jumps
        for _ in range(_MOST_ROUNDS):
            before = dict(self._names)
            if isinstance(node, ast.For):
                self._bind(node.target, each)
            else:
                self._place(self._value(node.test), node.test)
            self._block(node.body)
            self._names = _joined(before, self._names)
            if self._names == before:
                break
        else:
            raise NotLifted("flow-too-deep", detail="the values of a loop do not settle")
        self._jumping -= jumps

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        ours = target.elts if isinstance(target, ast.Tuple) else []
        theirs = value.elts if isinstance(value, ast.Tuple) else []
        if ours and len(ours) == len(theirs):
            for one, other in zip(ours, theirs, strict=True):
                self._bind(one, self._value(other))
            return
        self._bind(target, self._value(value))

    def _bind(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            for each in target.elts:
                self._bind(each, Value(value.tags))
        elif isinstance(target, ast.Name):
            before = self._names.get(target.id)
            if self._jumping and before is not None and before != value:
                value = merged([before, value])  # after a break it may be either
            self._names[target.id] = value

    def _value(self, node: ast.expr) -> Value:
        self._follower.spent += 1
        if self._follower.spent > _MOST_WORK:
            raise NotLifted("flow-too-deep", detail="it takes too long to follow its arguments")
        if isinstance(node, ast.Constant):
            known = node.value
            return Value(known=known if isinstance(known, Plain) else UNKNOWN)
        if isinstance(node, ast.Name):
            return self._names.get(node.id) or self._follower.globals.get(node.id, NOTHING)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.BinOp):
            return self._binary(node.left, node.op, node.right)
        if isinstance(node, ast.Compare):
            return self._compare(node)
        if isinstance(node, ast.Attribute) and node.attr in TYPE_FACTS:
            return _type_fact(node.attr, self._value(node.value))
        if isinstance(node, ast.BoolOp):
            return self._either(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self._value(node.operand)
            held = truth(inner)
            return Value(inner.tags, UNKNOWN if held is None else not held)
        if isinstance(node, ast.IfExp):
            held = truth(self._value(node.test))
            if held is not None:
                return self._value(node.body if held else node.orelse)
        parts = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
        return merged([self._value(each) for each in parts])

    def _either(self, node: ast.BoolOp) -> Value:
        values = [self._value(each) for each in node.values]
        held = [truth(value) for value in values]
        decides = isinstance(node.op, ast.Or)
        if decides in held:
            return Value(merged(values).tags, decides)
        return merged(values) if None in held else Value(merged(values).tags, not decides)

    def _binary(self, left: ast.expr, operation: ast.operator, right: ast.expr) -> Value:
        one, other = self._value(left), self._value(right)
        if isinstance(operation, ast.Mult):
            for here, there in ((one, other), (other, one)):
                for dimension in here.named("pid"):
                    by = there.named("arg") & self._follower.constants
                    self._found.moved[int(dimension)] |= by
                    if type(there.known) is int and not there.tags:
                        self._found.plain[int(dimension)].add(there.known)
        if isinstance(operation, ast.Mod):
            self._pair(one, other)
        return merged([one, other])

    def _compare(self, node: ast.Compare) -> Value:
        values = [self._value(each) for each in (node.left, *node.comparators)]
        for left, right in pairwise(values):
            self._pair(left, right)
            self._pair(right, left)
        known = (
            compared(node.ops[0], values[0].known, values[1].known) if len(values) == 2 else UNKNOWN
        )
        if all(isinstance(each, ast.Is | ast.IsNot) for each in node.ops):
            return Value(known=known)  # decided at compile time, from objects and not addresses
        return Value(_without_types(merged(values).tags), known)

    def _pair(self, ranged: Value, bound: Value) -> None:
        tiles = ranged.named("tile")
        if tiles and not bound.named("tile"):
            self._found.pairs |= {(name, tile) for name in bound.named("arg") for tile in tiles}

    def _call(self, node: ast.Call) -> Value:
        word = _word(node.func)
        args = [self._value(each) for each in node.args]
        named = {each.arg: self._value(each.value) for each in node.keywords if each.arg}
        if isinstance(node.func, ast.Name) and word in self._follower.source.functions:
            parameters = [each.arg for each in self._follower.source.functions[word].args.args]
            given = dict(zip(parameters, args, strict=False)) | named
            missing = self._follower.source.functions[word]
            return self._follower.call(word, _filled(given, missing))
        if isinstance(node.func, ast.Attribute) and not _is_module(node.func.value):
            args = [self._value(node.func.value), *args]
        return self._built_in(word, args, named, node)

    def _place(self, value: Value, node: ast.AST) -> None:
        """Note that loaded numbers become an address, or how often a loop runs."""
        self._found.places |= value.named("val")
        self._found.note("place", value.named("val"), node)

    def _built_in(
        self, word: str, args: list[Value], named: Mapping[str, Value], node: ast.Call
    ) -> Value:
        every = [*args, *named.values()]
        address = args[0] if args else named.get("pointer", NOTHING)
        if any(value.named("type") for value in every):
            detail = "a number is made a pointer"
            raise NotLifted("pointer-of-pointers", detail=detail, line=ast.unparse(node))
        if word in ("load", "store") or word in ATOMICS:
            self._place(address, node)
            if not address.named("ptr"):
                detail = "it accesses memory that no argument points to"
                raise NotLifted("pointer-of-pointers", detail=detail, line=ast.unparse(node))
        if word == "load":
            self._found.loaded |= address.named("ptr")
            other = [value for value in every if value is not address]
            found = frozenset(("val", name) for name in address.named("ptr"))
            masked = args[2] if len(args) > 2 else named.get("other", NOTHING)
            return Value(found | _contents(masked) | merged(other).tags - _addresses(other))
        if word == "store" or word in ATOMICS:
            value = args[1] if len(args) > 1 else named.get("value", NOTHING)
            if value.named("ptr"):
                detail = "an address is written to memory"
                raise NotLifted("pointer-stored", detail=detail, line=ast.unparse(node))
            to = self._found.stored if word == "store" else self._found.atomic
            if word in ATOMICS:
                self._found.note("atomic", address.named("ptr"), node)
            to |= address.named("ptr")
            if address.named("val"):
                self._found.scattered |= address.named("ptr")
            return NOTHING
        if word == "program_id":
            axis = (args[0] if args else named.get("axis", NOTHING)).known
            known = type(axis) is int and 0 <= axis <= 2
            tags = frozenset({("pid", str(axis))}) if known else _EVERY_PID
            self._found.placed |= {int(dimension) for _, dimension in tags}
            return Value(tags)
        if word == "arange" or word in ("make_block_ptr", "full", "zeros"):
            sizes = merged(every).named("arg") & self._follower.constants
            self._found.ranges |= sizes if word != "full" else set()
            tiles = frozenset(("tile", name) for name in sizes) if word == "arange" else _NONE
            if word == "full":
                filled = args[1] if len(args) > 1 else named.get("value", NOTHING)
                return Value(_contents(filled))
            return Value(tiles | (merged(every).tags if word == "make_block_ptr" else _NONE))
        self._note(word, every)
        return merged(every)

    def _note(self, word: str, every: list[Value]) -> None:
        if word in ("dot", "dot_scaled"):
            self._found.dots = True
        if word == "cdiv" and len(every) == 2:
            by = every[1].named("arg") & self._follower.constants
            self._found.steps |= by
            self._found.pairs |= {(n, tile) for n in every[0].named("arg") for tile in by}


_NONE: frozenset[tuple[str, str]] = frozenset()
_EVERY_PID = frozenset(("pid", str(axis)) for axis in range(3))


def _without_types(tags: frozenset[Tag]) -> frozenset[Tag]:
    return frozenset(tag for tag in tags if tag[0] != "type")


def _type_fact(name: str, value: Value) -> Value:
    """Return what follows from a type; a pointer's own type would make a number a pointer."""
    pointers = value.named("ptr") if name == "dtype" else frozenset()
    return Value(frozenset(("type", each) for each in pointers))


def _contents(value: Value) -> frozenset[Tag]:
    """Return the tags of a value that is put into other elements: addresses and loaded numbers."""
    return frozenset(tag for tag in value.tags if tag[0] in ("ptr", "val"))


def _addresses(values: list[Value]) -> frozenset[tuple[str, str]]:
    return frozenset(tag for value in values for tag in value.tags if tag[0] != "val")


def _filled(given: dict[str, Value], function: ast.FunctionDef) -> dict[str, Value]:
    names = [each.arg for each in function.args.args]
    without = names[: len(names) - len(function.args.defaults)]
    return {**dict.fromkeys(without, NOTHING), **{k: v for k, v in given.items() if k in names}}


def _is_module(node: ast.expr) -> bool:
    if isinstance(node, ast.Attribute):
        return _is_module(node.value)
    return isinstance(node, ast.Name) and node.id in ("tl", "triton", DEVICE_LIBRARY)


def _word(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
