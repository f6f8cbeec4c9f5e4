"""Files of these tests that run in a server's environment."""

from __future__ import annotations

collect_ignore = ["vllm_cpu/fake_tunable.py", "vllm_cpu/tiny_model.py"]
