"""Write what the charts copy from elsewhere; ``--check`` only says what is not current.

Objects from `retuned_operator.manifests`, CRDs from its models, policies from `policies/`,
dashboards and rules from `dashboards/`, the policies' part of the values' schema, and
`docs/chart-values.md` from the comments of `values.yaml`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from retuned_operator.manifests.chart import manifest_files, sidecar_template
from retuned_operator.schema import KINDS, schema_of
from retuned_operator.schema.__main__ import files as crd_files

sys.path.insert(0, str(Path(__file__).resolve().parent))
from chart_values import Value, page, read

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "charts" / "retuned"


def wanted() -> dict[Path, str]:
    """Return what each copy must say."""
    found = {
        ROOT / "charts" / "retuned-lib" / "templates" / "_parts.tpl": sidecar_template(),
        CHART / "values.schema.json": _schema(),
        ROOT / "docs" / "chart-values.md": page((CHART / "values.yaml").read_text("utf-8")),
    }
    found |= {CHART / "files" / "crds" / name: text for name, text in crd_files().items()}
    found |= {CHART / "files" / "manifests" / name: text for name, text in manifest_files().items()}
    for source, pattern in (("policies", "*.yaml"), ("dashboards", "*.json")):
        for path in sorted((ROOT / source).glob(pattern)):
            found[CHART / "files" / source / path.name] = path.read_text("utf-8")
    for path in sorted((ROOT / "dashboards" / "rules").glob("*.yaml")):
        if not path.stem.endswith("_test"):
            found[CHART / "files" / "rules" / path.name] = path.read_text("utf-8")
    return found


def stale() -> list[Path]:
    """Return the copies that are not current, and those that nothing is the source of."""
    want = wanted()
    wrong = [p for p, text in want.items() if not p.is_file() or p.read_text("utf-8") != text]
    present = [each for each in (CHART / "files").rglob("*") if each.is_file()]
    return sorted([*wrong, *(each for each in present if each not in want)])


def _schema() -> str:
    """Return the schema of values with the policies' part as the CRD has it."""
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    (kind,) = (each for each in KINDS if each.kind == "KernelTuningPolicy")
    spec = schema_of(kind)["properties"]["spec"]
    schema["$defs"]["policySpec"] = _plain(spec)
    for value in read((CHART / "values.yaml").read_text("utf-8")):
        _describe(schema, value)
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _describe(schema: dict[str, Any], value: Value) -> None:
    """Give a value its sentence, which editors show."""
    node = schema
    for name in value.path.split("."):
        if name not in node.get("properties", {}):
            return  # inside of what several values share
        node = node["properties"][name]
    node["description"] = value.text


def _plain(schema: Any) -> Any:  # noqa: ANN401 - any part of a JSON schema
    """Return a CRD's schema as a JSON schema that refuses unknown keys, as the API server does."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _plain(value) for key, value in schema.items() if _kept(key)}
    for bound in ("minimum", "maximum"):  # a truth value in OpenAPI 3.0, a number in JSON Schema
        if found.pop(f"exclusive{bound.title()}", False) is True:
            found[f"exclusive{bound.title()}"] = found.pop(bound)
    if schema.get("x-kubernetes-int-or-string") is True:
        found["type"] = ["integer", "string"]
    if "properties" in schema and isinstance(schema.get("type"), str):
        found.setdefault("additionalProperties", False)
    # what is left out of a policy of the values may come from the one that ships
    if found.get("type") == "object" and "priority" in found.get("properties", {}):
        found.pop("required", None)
    return found


def _kept(key: str) -> bool:
    return not key.startswith("x-kubernetes-")


def main() -> int:
    """Write, or say what is not current."""
    if "--check" in sys.argv[1:]:
        wrong = stale()
        for path in wrong:
            sys.stderr.write(f"{path.relative_to(ROOT)} is not current: run 'make sync'\n")
        return 1 if wrong else 0
    want = wanted()
    for path, text in want.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for path in stale():
        if path not in want:  # another one may be written to at this moment
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
