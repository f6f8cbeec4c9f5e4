"""Generators of variants.

``search`` proposes parameters by a surrogate of the measurements. ``recipes`` applies named changes
to a source. ``transfer`` proposes winners of other kernels and machines. ``fixed`` proposes a list.
``portfolio`` asks several of them in turns. ``inputs`` makes each for a plan.
"""

from retuned.lab.generators.portfolio import Portfolio
from retuned.lab.generators.recipes import RecipeGenerator
from retuned.lab.generators.search import SearchGenerator
from retuned.lab.generators.transfer import Earlier, PortingGenerator

__all__ = [
    "Earlier",
    "Portfolio",
    "PortingGenerator",
    "RecipeGenerator",
    "SearchGenerator",
]
