"""Values: each has its sentence, its place in the schema, and its row in the documentation."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from tests.charts.rendering import CHART, ROOT, Helm, Refused
from tests.expect import raises_naming

VALUES = (CHART / "values.yaml").read_text("utf-8")
SCHEMA = json.loads((CHART / "values.schema.json").read_text("utf-8"))


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


values = script("chart_values")
sync = script("chart_sync")
READ = values.read(VALUES)


def keys(body: dict[str, Any], path: str = "") -> Iterator[str]:
    for name, value in body.items():
        yield f"{path}{name}"
        if isinstance(value, dict):
            yield from keys(value, f"{path}{name}.")


def test_every_key_has_its_sentence() -> None:
    assert [value.path for value in READ if not value.text] == []
    assert [v.path for v in READ if not v.text[0].isupper() and not v.text.startswith("`")] == []
    assert [value.path for value in READ if value.leaf and not value.text.endswith(".")] == []


def test_no_key_is_overlooked() -> None:
    read = {value.path for value in READ}
    # maps in one line are one value: its parts are named in its own sentence or by the schema
    inline = {value.path for value in READ if value.leaf}
    assert {
        path
        for path in keys(yaml.safe_load(VALUES))
        if path not in read and not any(path.startswith(f"{each}.") for each in inline)
    } == set()


def test_a_key_without_a_sentence_is_seen_to_have_none() -> None:
    text = "# Said.\na: 1\nb: 2\n\n# Far away.\n\nc: 3\nd:\n  # Inside.\n  e: 4\n"
    assert {v.path: v.text for v in values.read(text)} == {
        "a": "Said.", "b": "", "c": "", "d": "", "d.e": "Inside.",
    }  # fmt: skip


def test_copies_are_current() -> None:
    stale = [str(path.relative_to(ROOT)) for path in sync.stale()]
    assert stale == [], "run: make sync"


def test_a_copy_that_nothing_is_the_source_of_is_found(tmp_path: Path) -> None:
    stray = CHART / "files" / "policies" / f"stray-{tmp_path.name}.yaml"
    stray.write_text("a: 1\n", "utf-8")
    try:
        assert stray in sync.stale()
    finally:
        stray.unlink()


def test_the_page_lists_every_value() -> None:
    page = (ROOT / "docs" / "chart-values.md").read_text("utf-8")
    for value in READ:
        if value.leaf:
            assert f"| `{value.path}` |" in page


def test_the_schema_knows_every_key_and_no_other() -> None:
    for value in READ:
        node = SCHEMA
        for name in value.path.split("."):
            node = SCHEMA["$defs"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node
            if "properties" not in node:  # a map of one kind of value
                assert isinstance(node["additionalProperties"], dict), value.path
                break
            assert name in node["properties"], value.path
            node = node["properties"][name]
    top = {value.path for value in READ if "." not in value.path}
    assert set(SCHEMA["properties"]) - top == {"global"}


def objects(schema: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(schema, dict):
        if "properties" in schema and isinstance(schema["properties"], dict):
            yield path, schema
        for name, below in schema.items():
            yield from objects(below, f"{path}/{name}")


def test_every_object_of_the_schema_refuses_unknown_keys() -> None:
    found = list(objects(SCHEMA))
    assert len(found) > 40
    assert [path for path, node in found if node.get("additionalProperties") is not False] == []


@pytest.mark.parametrize("value", [v for v in READ if "." in v.path and not v.leaf])
def test_a_typing_error_anywhere_is_refused(helm: Helm, value: Any) -> None:
    body: dict[str, Any] = {"notAValue": 1}
    for name in reversed(value.path.split(".")):
        body = {name: body}
    with raises_naming(Refused, "notAValue"):
        helm.files(body)


def test_defaults_are_what_the_schema_allows(helm: Helm) -> None:
    helm.files(yaml.safe_load(VALUES))
