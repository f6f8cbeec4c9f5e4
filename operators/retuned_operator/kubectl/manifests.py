"""YAML as people keep it, with the sidecar put into its pods; everything else stays as it is.

Documents without pods come out byte for byte. Where pods are changed, only the parts that the
change names are written anew: every other value keeps its spelling, so that nothing becomes another
type on its way (``0644``, ``1e3``, ``on``). Comments of changed documents are lost.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from retuned.errors import UnreadableInput
from retuned_operator.manifests.injection import Injection, inject
from retuned_operator.manifests.names import CONTAINER, TARGET
from retuned_operator.manifests.settings import SidecarSettings
from retuned_operator.manifests.workloads import Place, templates_of

MAX_BYTES = 16 * 2**20
"""Largest stream that is read."""
_MAX_DEPTH = 100
_MAX_DOCUMENTS = 5_000
_NUMBER = re.compile(r"[-+.]?[0-9]")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "~"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What became of the pods of one object."""

    name: str
    """Kind and name."""
    result: Injection
    """What became of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A stream of documents."""

    text: str
    """As it is now."""
    workloads: tuple[Workload, ...]
    """Every object with pods, in order."""


def changed(
    text: str, *, settings: SidecarSettings, where: str, target: str = "", container: str = ""
) -> Changed:
    """Put the sidecar into every pod of a stream of YAML documents.

    Parameters
    ----------
    text
        The stream.
    settings
        How the sidecar looks.
    where
        Its name, for messages.
    target, container
        TuningTarget and container, where the pods' annotations do not name them.

    Raises
    ------
    UnreadableInput
        ``not-yaml`` with the line, or ``too-large``.
    """
    if len(text) > MAX_BYTES:
        raise UnreadableInput("too-large", where=where, message=f"larger than {MAX_BYTES} bytes")
    given = {name: value for name, value in ((TARGET, target), (CONTAINER, container)) if value}
    parts, workloads, end = [], [], 0
    try:
        for begin, stop, node in _documents(text):
            found, changed_any = [], False
            for item in _objects(node):
                for workload in _injected(item, settings, given):
                    found.append(workload)
                    changed_any |= workload.result.reason is None
            workloads += found
            if changed_any:
                parts += [text[end:begin], _written(node)]
                end = stop
    except yaml.YAMLError as error:
        raise _unreadable(error, where) from None
    except RecursionError:
        raise UnreadableInput("not-yaml", where=where, message="is nested too deeply") from None
    return Changed(text="".join((*parts, text[end:])), workloads=tuple(workloads))


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
for _class in (_Loader, _Dumper):
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


_Dumper.add_representer(str, _text)


def _documents(text: str) -> Iterator[tuple[int, int, yaml.Node]]:
    """Yield begin, end and content of each document that is a mapping or a list."""
    loader = _Loader(text)
    try:
        for _ in range(_MAX_DOCUMENTS):
            if not loader.check_node():
                return
            node = loader.get_node()
            if node is not None and not isinstance(node, yaml.ScalarNode):
                yield node.start_mark.index, node.end_mark.index, node
    finally:
        loader.dispose()
    raise yaml.YAMLError(f"more than {_MAX_DOCUMENTS} documents")


def _objects(node: yaml.Node) -> Iterator[yaml.MappingNode]:
    """Yield the objects of a document: itself, or the items of a List."""
    if not isinstance(node, yaml.MappingNode):
        return
    kind, items = _child(node, "kind"), _child(node, "items")
    if (
        isinstance(kind, yaml.ScalarNode)
        and kind.value.endswith("List")
        and isinstance(items, yaml.SequenceNode)
    ):
        for item in items.value:
            yield from _objects(item)
    else:
        yield node


def _injected(
    node: yaml.MappingNode, settings: SidecarSettings, given: Mapping[str, str]
) -> Iterator[Workload]:
    """Change the pods of one object in place; yield what became of them."""
    if not _has_pods(node):
        return
    _refuse_what_is_shared(node)
    body = _value(node)
    name = f"{body.get('kind')} {(body.get('metadata') or {}).get('name', '')}".strip()
    for place, template in templates_of(body):
        said = _annotated(template, given)
        result = inject(said, settings=settings, always=True)
        if result.reason is None:
            below = _node_at(node, place)
            for path, value in _additions(template, said):
                _set(below, path, value)
            for operation in result.patch:
                _set(below, operation["path"].strip("/").split("/"), operation["value"])
        yield Workload(name=name, result=result)


def _has_pods(node: yaml.MappingNode) -> bool:
    """Whether its group and kind make pods; read without its content, which may be anything."""
    about = {}
    for key in ("apiVersion", "kind"):
        child = _child(node, key)
        about[key] = child.value if isinstance(child, yaml.ScalarNode) else ""
    spec: dict[str, Any] = {"template": {}, "jobTemplate": {"spec": {"template": {}}}}
    spec["leaderWorkerTemplate"] = {"leaderTemplate": {}}
    return bool(templates_of({**about, "template": {}, "spec": spec}))


def _annotated(template: Mapping[str, Any], given: Mapping[str, str]) -> Mapping[str, Any]:
    metadata = template.get("metadata") or {}
    known = metadata.get("annotations") or {} if isinstance(metadata, Mapping) else None
    if not given or not isinstance(known, Mapping):
        return template
    return {**template, "metadata": {**metadata, "annotations": {**given, **known}}}


def _additions(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[tuple[list[str], object]]:
    if after is not before:
        yield ["metadata", "annotations"], after["metadata"]["annotations"]


def _set(node: yaml.Node, path: list[str], value: object) -> None:
    """Write a value; what of a list or mapping is as before keeps the nodes that it had."""
    *above, last = path
    for part in above:
        node = _descend(node, part)
    assert isinstance(node, yaml.MappingNode), "only keys of mappings are changed"
    old = _child(node, last)
    new = _merged(old, value)
    if old is None:
        node.value.append((_represented(last), new))
    else:
        node.value[:] = [(key, new if kept is old else kept) for key, kept in node.value]


def _merged(old: yaml.Node | None, value: object) -> yaml.Node:
    if isinstance(old, yaml.SequenceNode) and isinstance(value, list):
        kept = [(_value(each), each) for each in old.value]
        filled = []
        for each in value:
            place = next((n for n, (known, _) in enumerate(kept) if known == each), None)
            filled.append(_represented(each) if place is None else kept.pop(place)[1])
        return yaml.SequenceNode(old.tag, filled, flow_style=old.flow_style)
    if isinstance(old, yaml.MappingNode) and isinstance(value, Mapping):
        same = [(k, n) for k, n in old.value if value.get(k.value) == _value(n)]
        names = {k.value for k, _ in same}
        new = [(_represented(k), _represented(v)) for k, v in value.items() if k not in names]
        return yaml.MappingNode(old.tag, same + new, flow_style=old.flow_style)
    return _represented(value)


def _descend(node: yaml.Node, part: str) -> yaml.Node:
    if isinstance(node, yaml.SequenceNode):
        found: yaml.Node = node.value[int(part)]
        return found
    child = _child(node, part)
    if child is None or (isinstance(child, yaml.ScalarNode) and child.value in ("", "null", "~")):
        fresh = yaml.MappingNode("tag:yaml.org,2002:map", [], flow_style=False)
        assert isinstance(node, yaml.MappingNode), "a path leads through mappings and lists"
        kept = [(k, n) for k, n in node.value if n is not child]
        node.value[:] = [*kept, (_represented(part), fresh)]
        return fresh
    return child


def _node_at(node: yaml.Node, place: Place) -> yaml.Node:
    for part in place:
        node = _descend(node, part)
    return node


def _child(node: yaml.Node, name: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((n for key, n in node.value if key.value == name), None)


def _refuse_what_is_shared(node: yaml.Node) -> None:
    """Refuse aliases and keys that come twice: a change to one place would be one to others."""
    seen: set[int] = set()
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            raise yaml.MarkedYAMLError(
                problem="anchors and aliases are not supported here; write them out",
                problem_mark=each.start_mark,
            )
        seen.add(id(each))
        if isinstance(each, yaml.MappingNode):
            names = [key.value for key, _ in each.value]
            twice = next((k for k, _ in each.value if names.count(k.value) > 1), None)
            if twice is not None or "<<" in names:
                raise yaml.MarkedYAMLError(
                    problem="a key comes twice, or is merged from elsewhere; write it out once",
                    problem_mark=each.start_mark,
                )
            waiting += [child for pair in each.value for child in pair]
        elif isinstance(each, yaml.SequenceNode):
            waiting += each.value


def _value(node: yaml.Node) -> Any:  # noqa: ANN401 - any YAML
    """Return a node as data; a key that is no text becomes its spelling."""
    if isinstance(node, yaml.MappingNode):
        return {str(key.value): _value(child) for key, child in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_value(child) for child in node.value]
    if node.tag in ("tag:yaml.org,2002:null",):
        return None
    if node.tag == "tag:yaml.org,2002:bool":
        return node.value.lower() in ("true", "yes", "on", "y")
    return str(node.value)


def _represented(value: object) -> yaml.Node:
    dumper = _Dumper(io.StringIO())
    try:
        return dumper.represent_data(value)
    finally:
        dumper.dispose()


def _written(node: yaml.Node) -> str:
    text: str = yaml.serialize(node, Dumper=_Dumper, width=1000)
    return text


def _unreadable(error: yaml.YAMLError, where: str) -> UnreadableInput:
    mark = getattr(error, "problem_mark", None)
    place = f"{where}:{mark.line + 1}" if mark else where
    problem = getattr(error, "problem", None) or str(error)
    return UnreadableInput("not-yaml", where=place, message=str(problem)[:200])
