"""Changes to a kernel that have a name: each is a function from a situation to variants and why.

``known``: the recipes. ``looping``: the rewriting of Triton sources. ``generator``: all of them as
one generator.
"""

from retuned.lab.generators.recipes.generator import RecipeGenerator
from retuned.lab.generators.recipes.input import Recipe, RecipeResult, Situation
from retuned.lab.generators.recipes.recipes import RECIPES

__all__ = ["RECIPES", "Recipe", "RecipeGenerator", "RecipeResult", "Situation"]
