"""Who proposes variants.

``search``: parameters, by a surrogate of what was measured. ``random``: chance, to compare with.
``tpe``: optuna's sampler. ``recipes``: changes that have a name. ``porting``: winners from
elsewhere. ``given``: a list. ``portfolio``: several of them in turns. ``occasion``: how each is
made for a plan.
"""

from retuned.lab.generators.portfolio import Portfolio
from retuned.lab.generators.random import RandomGenerator
from retuned.lab.generators.recipes import RecipeGenerator
from retuned.lab.generators.search import SearchGenerator
from retuned.lab.generators.tpe import TpeGenerator
from retuned.lab.generators.transfer import Earlier, PortingGenerator

__all__ = [
    "Earlier",
    "Portfolio",
    "PortingGenerator",
    "RandomGenerator",
    "RecipeGenerator",
    "SearchGenerator",
    "TpeGenerator",
]
