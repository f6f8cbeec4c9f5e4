"""YAML as nodes that keep their spelling, read and written as kubectl reads it."""

from __future__ import annotations

import io
import re
from collections.abc import Collection, Iterator
from typing import Any

import yaml

_MAX_DEPTH = 100
_MARK = re.compile(r"^---(?=\s|\Z)", re.MULTILINE)
_MAX_NODES = 200_000
"""Values of one document with pods; more than an API server takes."""
_NUMBER = re.compile(r"[-+.]?[0-9]")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "~"})


class _Loader(yaml.SafeLoader):
    """Reads what kubectl reads: numbers and words of JSON, no dates and no base of sixty."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:  # noqa: ANN401
        self.depth = getattr(self, "depth", 0) + 1
        if self.depth > _MAX_DEPTH:
            raise yaml.YAMLError(f"nested deeper than {_MAX_DEPTH}")
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _Dumper(yaml.SafeDumper):
    """Writes text so that no reader of YAML takes it for something else."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ANN401 - as the base says
        return True


class _Indented(_Dumper):
    """Sets lists in below their key, for documents that do."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, indentless=False)


_RESOLVERS = {
    first: [
        (tag, pattern)
        for tag, pattern in found
        if not tag.endswith((":timestamp", ":int", ":float", ":merge", ":value"))
    ]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _class in (_Loader, _Dumper, _Indented):
    _class.yaml_implicit_resolvers = {first: list(found) for first, found in _RESOLVERS.items()}
    _class.add_implicit_resolver(
        "tag:yaml.org,2002:int",
        re.compile(r"[-+]?(0|[1-9][0-9_]*|0[0-7_]+|0o[0-7]+|0x[0-9a-fA-F_]+)$"),
        list("-+0123456789"),
    )
    _class.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|[-+]?\.(inf|nan)$", re.I),
        list("-+.0123456789"),
    )


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    unsafe = _NUMBER.match(value) or value.lower() in _WORDS
    style = "'" if unsafe else "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


for _class in (_Dumper, _Indented):
    _class.add_representer(str, _text)


def documents(text: str, *, kinds: Collection[str]) -> Iterator[tuple[int, int, yaml.Node]]:
    """Yield begin, end and content of each document that may hold an object of these kinds.

    The others are not even read: they may be anything, and reading takes most of the time.

    Raises
    ------
    yaml.YAMLError
        If such a document cannot be read.
    """
    asked = re.compile(rf"kind[\"']?\s*:\s*[\"']?({'|'.join(sorted(kinds))}|[A-Za-z]*List)\b")
    marks = list(_MARK.finditer(text))
    begins = [0, *(mark.end() for mark in marks)]
    ends = [*(mark.start() for mark in marks), len(text)]
    for begin, end in zip(begins, ends, strict=True):
        part = text[begin:end]
        if asked.search(part):
            yield from _document(part, begin, line=text.count("\n", 0, begin))


def _document(text: str, begin: int, *, line: int) -> Iterator[tuple[int, int, yaml.Node]]:
    loader = _Loader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            if node is not None and not isinstance(node, yaml.ScalarNode):
                yield begin + node.start_mark.index, begin + node.end_mark.index, node
    except yaml.MarkedYAMLError as error:
        if error.problem_mark is not None:
            error.problem_mark.line += line
        raise
    finally:
        loader.dispose()


def child_of(node: yaml.Node, name: str) -> yaml.Node | None:
    """Return the value of a key; None where there is none."""
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((n for key, n in node.value if key.value == name), None)


def refuse_what_is_unclear(node: yaml.Node) -> None:
    """Refuse duplicate keys, merge keys, and aliases that expand to too much."""
    waiting, count = [node], 0
    while waiting:
        each, count = waiting.pop(), count + 1
        if count > _MAX_NODES:
            raise yaml.MarkedYAMLError(
                problem=f"more than {_MAX_NODES} values after aliases are expanded",
                problem_mark=each.start_mark,
            )
        if isinstance(each, yaml.MappingNode):
            names = [str(key.value) for key, _ in each.value]
            if len(set(names)) < len(names) or "<<" in names:
                raise yaml.MarkedYAMLError(
                    problem="a key comes twice, or is merged from elsewhere; write it out once",
                    problem_mark=each.start_mark,
                )
            waiting += [child for pair in each.value for child in pair]
        elif isinstance(each, yaml.SequenceNode):
            waiting += each.value


def value_of(node: yaml.Node) -> Any:  # noqa: ANN401 - any YAML
    """Return a node as data; a key that is not text becomes its spelling."""
    if isinstance(node, yaml.MappingNode):
        return {str(key.value): value_of(child) for key, child in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [value_of(child) for child in node.value]
    if node.tag == "tag:yaml.org,2002:null":
        return None
    if node.tag == "tag:yaml.org,2002:bool":
        return node.value.lower() in ("true", "yes", "on", "y")
    return str(node.value)


def represented(value: object) -> yaml.Node:
    """Return data as a node."""
    dumper = _Dumper(io.StringIO(), sort_keys=False)
    try:
        return dumper.represent_data(value)
    finally:
        dumper.dispose()


def written(node: yaml.Node) -> str:
    """Return a document as text, with its lists set in or not as they were."""
    dumper = _Indented if _is_indented(node) else _Dumper
    text: str = yaml.serialize(node, Dumper=dumper, width=10**9)
    return text


def _is_indented(node: yaml.Node) -> bool:
    """Whether the first list of a document is set in below its key."""
    waiting = [node]
    while waiting:
        each = waiting.pop(0)
        for key, child in each.value if isinstance(each, yaml.MappingNode) else ():
            is_list = isinstance(child, yaml.SequenceNode) and not child.flow_style
            if is_list and key.start_mark is not None and child.start_mark is not None:
                return bool(child.start_mark.column > key.start_mark.column)
            waiting.append(child)
        waiting += each.value if isinstance(each, yaml.SequenceNode) else []
    return False
