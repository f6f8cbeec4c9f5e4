"""Tests on the newest releases and with a serving vLLM run only where their mark selects them."""

from __future__ import annotations

import re

import pytest

collect_ignore = ["vllm_cpu/fake_tunable.py", "vllm_cpu/tiny_model.py"]
"""They run in the server's environment."""
OF_THEIR_OWN = ("newest", "vllm")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave them out: an upstream release must not block other work, a server takes minutes."""
    selected = re.findall(r"\w+", config.option.markexpr or "")
    absent = [mark for mark in OF_THEIR_OWN if mark not in selected]
    left_out = [item for item in items if any(mark in item.keywords for mark in absent)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
