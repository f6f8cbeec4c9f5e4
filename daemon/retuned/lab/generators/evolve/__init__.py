"""Evolution by a language model: it writes variants, the lab judges them, islands keep the best."""

from retuned.lab.generators.evolve.config import EvolveConfig, EvolveRules
from retuned.lab.generators.evolve.device import DeviceBrief, brief_of
from retuned.lab.generators.evolve.generator import EvolveGenerator
from retuned.lab.generators.evolve.knowledge import read_hint
from retuned.lab.generators.evolve.redaction import redact, redactor, secrets_only
from retuned.lab.generators.evolve.task import Task

__all__ = [
    "DeviceBrief",
    "EvolveConfig",
    "EvolveGenerator",
    "EvolveRules",
    "Task",
    "brief_of",
    "read_hint",
    "redact",
    "redactor",
    "secrets_only",
]
