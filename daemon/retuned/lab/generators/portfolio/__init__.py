"""Several generators as one: a bandit decides whose turn it is, and every turn is written down.

``bandit``: the decision. ``turns``: where turns are kept. ``portfolio``: the generator.
"""

from retuned.lab.generators.portfolio.bandit import BanditSettings, Choice, choose
from retuned.lab.generators.portfolio.portfolio import Portfolio
from retuned.lab.generators.portfolio.turns import TurnFolder, TurnList, TurnLog, close_turn

__all__ = [
    "BanditSettings",
    "Choice",
    "Portfolio",
    "TurnFolder",
    "TurnList",
    "TurnLog",
    "choose",
    "close_turn",
]
