"""Changes to a kernel that have a name: each is a function from a situation to variants and why.

``known``: the recipes. ``looping``: the rewriting of Triton sources. ``generator``: all of them as
one generator.
"""

from retuned.lab.generators.recipes.generator import RecipeGenerator
from retuned.lab.generators.recipes.known import RECIPES
from retuned.lab.generators.recipes.situation import Recipe, RecipeResult, Situation

__all__ = ["RECIPES", "Recipe", "RecipeGenerator", "RecipeResult", "Situation"]
