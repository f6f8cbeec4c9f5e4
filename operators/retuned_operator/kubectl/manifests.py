"""Add the sidecar to the pods of YAML manifests, and change nothing else.

Documents without pods stay the same byte for byte. In pods, only the parts that the change names
are written again. Every other value keeps its spelling, so that it does not become another type
(``0644``, ``1e3``, ``on``). Comments of changed documents are lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import yaml

from retuned.errors import UnreadableInput
from retuned_operator.kubectl.nodes import (
    child_of,
    documents,
    refuse_what_is_unclear,
    represented,
    value_of,
    written,
)
from retuned_operator.manifests.injection import Injection, inject
from retuned_operator.manifests.names import CONTAINER, TARGET
from retuned_operator.manifests.settings import SidecarSettings
from retuned_operator.manifests.workloads import KINDS, Place, templates_of

MAX_BYTES = 16 * 2**20
"""Largest stream that is read."""


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
    if text.lstrip()[:1] == "{":
        with suppress(ValueError, RecursionError):
            body = json.loads(text, object_pairs_hook=_once)
            return _changed_json(body, text, settings=settings, given=given)
    parts, workloads, end = [], [], 0
    try:
        for begin, stop, node in documents(text, kinds=KINDS):
            found, changed_any = [], False
            for item in _objects(node):
                for workload in _injected(item, settings, given):
                    found.append(workload)
                    changed_any |= workload.result.reason is None
            workloads += found
            if changed_any:
                parts += [text[end:begin], written(node)]
                end = stop
    except yaml.YAMLError as error:
        raise _unreadable(error, where) from None
    except RecursionError:
        raise UnreadableInput("not-yaml", where=where, message="is nested too deeply") from None
    return Changed(text="".join((*parts, text[end:])), workloads=tuple(workloads))


def _changed_json(
    body: Any,  # noqa: ANN401 - any JSON
    text: str,
    *,
    settings: SidecarSettings,
    given: Mapping[str, str],
) -> Changed:
    """Do the same where the stream is one JSON document; it stays JSON."""
    is_list = str(body.get("kind", "")).endswith("List") and isinstance(body.get("items"), list)
    workloads = []
    for item in body["items"] if is_list else [body]:
        for place, template in templates_of(item) if isinstance(item, dict) else ():
            result = inject(_annotated(template, given), settings=settings, always=True)
            workloads.append(Workload(name=_name(item), result=result))
            if result.reason is None:
                below = item
                for key in place[:-1]:
                    below = below[key]
                if place:
                    below[place[-1]] = result.pod
                else:
                    item |= result.pod
    if any(each.result.reason is None for each in workloads):
        text = json.dumps(body, indent=2, ensure_ascii=False) + "\n"
    return Changed(text=text, workloads=tuple(workloads))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; one with a key that comes twice is left to who names its place."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key comes twice")
    return found


def _name(body: Mapping[str, Any]) -> str:
    metadata = body.get("metadata")
    name = metadata.get("name", "") if isinstance(metadata, Mapping) else ""
    return f"{body.get('kind')} {name}".strip()


def _objects(node: yaml.Node) -> Iterator[yaml.MappingNode]:
    """Yield the objects of a document: itself, or the items of a List."""
    if not isinstance(node, yaml.MappingNode):
        return
    kind, items = child_of(node, "kind"), child_of(node, "items")
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
    refuse_what_is_unclear(node)
    body = value_of(node)
    name = _name(body)
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
        child = child_of(node, key)
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
    old = child_of(node, last)
    new = _merged(old, value)
    if old is None:
        node.value.append((represented(last), new))
    else:
        node.value[:] = [(key, new if kept is old else kept) for key, kept in node.value]


def _merged(old: yaml.Node | None, value: object) -> yaml.Node:
    if isinstance(old, yaml.SequenceNode) and isinstance(value, list):
        kept = [(value_of(each), each) for each in old.value]
        filled = []
        for each in value:
            place = next((n for n, (known, _) in enumerate(kept) if known == each), None)
            filled.append(represented(each) if place is None else kept.pop(place)[1])
        return yaml.SequenceNode(old.tag, filled, flow_style=old.flow_style)
    if isinstance(old, yaml.MappingNode) and isinstance(value, Mapping):
        same = [(k, n) for k, n in old.value if value.get(k.value) == value_of(n)]
        names = {k.value for k, _ in same}
        new = [(represented(k), represented(v)) for k, v in value.items() if k not in names]
        return yaml.MappingNode(old.tag, same + new, flow_style=old.flow_style)
    return represented(value)


def _descend(node: yaml.Node, part: str) -> yaml.Node:
    """Return the child node as a copy for this place: an alias may be used elsewhere too."""
    if isinstance(node, yaml.SequenceNode):
        node.value[int(part)] = _own(node.value[int(part)])
        found: yaml.Node = node.value[int(part)]
        return found
    assert isinstance(node, yaml.MappingNode), "a path leads through mappings and lists"
    child = child_of(node, part)
    own = _own(child)
    if child is None:
        node.value.append((represented(part), own))
    else:
        node.value[:] = [(key, own if kept is child else kept) for key, kept in node.value]
    return own


def _own(node: yaml.Node | None) -> yaml.Node:
    """Return a copy with the same children; a new mapping in place of nothing."""
    if isinstance(node, yaml.SequenceNode | yaml.MappingNode):
        return type(node)(
            node.tag,
            list(node.value),
            start_mark=node.start_mark,
            end_mark=node.end_mark,
            flow_style=node.flow_style,
        )
    return yaml.MappingNode("tag:yaml.org,2002:map", [], flow_style=False)


def _node_at(node: yaml.Node, place: Place) -> yaml.Node:
    for part in place:
        node = _descend(node, part)
    return node


def _unreadable(error: yaml.YAMLError, where: str) -> UnreadableInput:
    mark = getattr(error, "problem_mark", None)
    place = f"{where}:{mark.line + 1}" if mark else where
    problem = getattr(error, "problem", None) or str(error)
    return UnreadableInput("not-yaml", where=place, message=str(problem)[:200])
