"""Write docs/configuration.md from the settings' own texts; ``--check`` only compares."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from retuned.settings import PREFIX, RESERVED, Settings

TARGET = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"

HEAD = """# Configuration

<!-- Made by scripts/configuration_docs.py from daemon/retuned/settings.py; do not edit. -->

Strength, weakest first: defaults, a file (YAML or TOML, `--config` or `RETUNED_CONFIG`), the
environment, flags. What is not known is refused with its place, in the file and in the environment
alike. Names that others read are left aside: {reserved}.
In the environment lists of paths are separated by colons, cores are written `0,2-3` and pairs
`a=b,c=d`.

```yaml
# retuned.yaml
watch_dirs: [/var/lib/retuned/traces]
policy_files: [/etc/retuned/policies]
env: prod
labels: {app: vllm}
```

| setting | environment | default | what it does |
|---|---|---|---|
"""


def render() -> str:
    """Return the whole page."""
    rows = []
    for name, field in Settings.model_fields.items():
        text = " ".join((field.description or "").split()).replace("|", "\\|")
        rows.append(f"| `{name}` | `{PREFIX}{name.upper()}` | {_default(name, field)} | {text} |\n")
    reserved = ", ".join(f"`{name}`" for name in sorted(RESERVED))
    return HEAD.replace("{reserved}", reserved) + "".join(rows)


def _default(name: str, field: Any) -> str:  # noqa: ANN401 - pydantic's FieldInfo
    if name == "state_dir":
        return "`~/.local/state/retuned`"  # depends on the machine
    value = field.get_default(call_default_factory=True)
    if value in (None, "", (), {}):
        return "none"
    return f"`{value}`"


def main() -> int:
    """Write the page, or say whether it is current."""
    page = render()
    if "--check" in sys.argv[1:]:
        return 0 if TARGET.is_file() and TARGET.read_text(encoding="utf-8") == page else 1
    TARGET.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
