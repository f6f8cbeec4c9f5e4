"""Print the CRDs, or write the copies that the chart carries.

``python -m retuned_operator.schema`` prints all of them as one YAML stream;
``python -m retuned_operator.schema --write charts/retuned/files/crds`` writes one file each.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from retuned_operator.schema.crds import KINDS, definition_of

HEADER = (
    "# Made by `python -m retuned_operator.schema --write`; change the models, not this file.\n"
)
_USAGE = "usage: python -m retuned_operator.schema [--write FOLDER]\n"


def files() -> dict[str, str]:
    """Return the text of each file by its name; the same models give the same bytes."""
    return {
        f"{kind.full_name}.yaml": HEADER
        + yaml.safe_dump(definition_of(kind), sort_keys=False, width=100, allow_unicode=True)
        for kind in KINDS
    }


def main(arguments: Sequence[str]) -> int:
    """Print or write, and return the exit code."""
    if not arguments:
        sys.stdout.write("---\n".join(files().values()))
        return 0
    if len(arguments) != 2 or arguments[0] != "--write":
        sys.stderr.write(_USAGE)
        return 2
    folder = Path(arguments[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files().items():
        (folder / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
