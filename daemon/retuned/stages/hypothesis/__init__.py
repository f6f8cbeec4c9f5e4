"""Stage 4, hypothesis: which kernels at which shapes are worth an experiment, and why. Pure.

``hypothesize`` turns a drift report into hypotheses, ``tunables`` the launches of a tunable into
one. ``refine`` learns from experiments and decides
when another attempt no longer pays. ``records`` defines a hypothesis.
"""

from retuned.stages.hypothesis.hypothesize import hypothesize, unseen
from retuned.stages.hypothesis.records import Attempt, Hypothesis, HypothesisSettings, ShapeCost
from retuned.stages.hypothesis.refine import (
    Lesson,
    Outlook,
    Refinement,
    StopReason,
    consider,
    hopeless,
    learn_from,
    lesson_of,
    look_elsewhere,
    outlook,
    refine,
    tally,
)
from retuned.stages.hypothesis.tunables import (
    TABLE_STRUCTURE,
    NotTried,
    Untried,
    UsedClass,
    believe_in_table,
    together,
)

__all__ = [
    "TABLE_STRUCTURE",
    "Attempt",
    "Hypothesis",
    "HypothesisSettings",
    "Lesson",
    "NotTried",
    "Outlook",
    "Refinement",
    "ShapeCost",
    "StopReason",
    "Untried",
    "UsedClass",
    "believe_in_table",
    "consider",
    "hopeless",
    "hypothesize",
    "learn_from",
    "lesson_of",
    "look_elsewhere",
    "outlook",
    "refine",
    "tally",
    "together",
    "unseen",
]
