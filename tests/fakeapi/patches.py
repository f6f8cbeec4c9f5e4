"""The three kinds of patches; of server-side apply, what does not need the schemas of lists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.fakeapi.copying import copied
from tests.fakeapi.refusals import Refusal, bad

Obj = dict[str, Any]
Path = tuple[str, ...]
_NOT_OWNED = {("apiVersion",), ("kind",), ("metadata", "name"), ("metadata", "namespace")}
_NOT_OWNED |= {("metadata", "resourceVersion"), ("metadata", "uid")}


def merged(old: Any, change: Any) -> Any:
    """Return a merge patch's result (RFC 7386)."""
    if not isinstance(change, dict):
        return copied(change)
    out = dict(old) if isinstance(old, dict) else {}
    for key, value in change.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = merged(out.get(key), value)
    return out


def json_patched(old: Obj, operations: object) -> Obj:
    """Return the result of a JSON patch of add, replace, remove and test.

    Raises
    ------
    Refusal
        If it is none, or a test fails.
    """
    if not isinstance(operations, list):
        raise bad("a JSON patch is a list")
    out: Obj = copied(old)
    for each in operations:
        parts = [part.replace("~1", "/").replace("~0", "~") for part in each["path"].split("/")[1:]]
        node: Any = out
        for part in parts[:-1]:
            node = node[int(part)] if isinstance(node, list) else node.get(part)
            if node is None:
                raise Refusal(422, "Invalid", message=f"{each['path']}: no such place")
        _operate(node, parts[-1], each)
    return out


def _operate(node: Any, last: str, operation: Obj) -> None:
    kind, value = operation["op"], operation.get("value")
    there = int(last) < len(node) if isinstance(node, list) and last != "-" else last in node
    if kind in ("replace", "remove", "test") and not there:
        raise Refusal(422, "Invalid", message=f"{operation['path']}: no such place")
    if isinstance(node, list):
        if kind == "add":
            node.insert(len(node) if last == "-" else int(last), value)
            return
        last = int(last)  # type: ignore[assignment]
    if kind == "test":
        if node[last] != value:
            raise Refusal(422, "Invalid", message=f"testing value {operation['path']} failed")
    elif kind == "remove":
        del node[last]
    else:
        node[last] = value


class Ownership:
    """Which manager set which field of one object last."""

    def __init__(self) -> None:
        self._paths: dict[tuple[str, str], set[Path]] = {}
        """By manager and operation."""

    def updated(self, manager: str, *, old: Obj, new: Obj) -> None:
        """Note what a write that was no apply changed."""
        before, after = dict(_leaves(old)), dict(_leaves(new))
        touched = {path for path in before | after if before.get(path) != after.get(path)}
        for paths in self._paths.values():
            paths -= touched
        self._paths.setdefault((manager, "Update"), set()).update(touched & set(after))

    def apply(self, manager: str, *, old: Obj, given: Obj, force: bool) -> Obj:
        """Return the object with what is applied.

        Raises
        ------
        Refusal
            409 if another manager set a field otherwise, and nothing is forced.
        """
        wanted, there = dict(_leaves(given)), dict(_leaves(old))
        wanted = {path: value for path, value in wanted.items() if path not in _NOT_OWNED}
        mine = (manager, "Apply")
        for other, paths in self._paths.items():
            clash = {path for path in paths & set(wanted) if there.get(path) != wanted[path]}
            if other == mine or not clash:
                continue
            if not force:
                names = ", ".join(sorted("." + ".".join(path) for path in clash))
                text = f'Apply failed with 1 conflict: conflict with "{other[0]}": {names}'
                raise Refusal(409, "Conflict", message=text)
            paths -= clash
        out: Obj = copied(old)
        others = {path for key, paths in self._paths.items() if key != mine for path in paths}
        for path in self._paths.get(mine, set()) - set(wanted) - others:
            _remove(out, path)
        for path, value in wanted.items():
            _put(out, path, value)
        self._paths[mine] = set(wanted)
        return out

    def managed_fields(self, api_version: str) -> list[Obj]:
        return [
            {"manager": manager, "operation": operation, "apiVersion": api_version}
            for (manager, operation), paths in self._paths.items()
            if paths
        ]


def _leaves(node: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    if isinstance(node, dict) and node:
        for key, value in node.items():
            if (*path, key) not in (("metadata", "managedFields"), ("metadata", "generation")):
                yield from _leaves(value, (*path, key))
    elif path:
        yield path, node


def _put(node: Obj, path: Path, value: Any) -> None:
    for part in path[:-1]:
        if not isinstance(node.get(part), dict):
            node[part] = {}
        node = node[part]
    node[path[-1]] = copied(value)


def _remove(node: Obj, path: Path) -> None:
    inside = []
    for part in path[:-1]:
        if not isinstance(node.get(part), dict):
            return
        inside.append((node, part))
        node = node[part]
    node.pop(path[-1], None)
    for outer, part in reversed(inside):
        if not outer[part]:
            del outer[part]
