"""Who proposes variants: a search over parameters, and chance to compare it with."""

from retuned.lab.generators.random import RandomGenerator
from retuned.lab.generators.search import SearchGenerator

__all__ = ["RandomGenerator", "SearchGenerator"]
