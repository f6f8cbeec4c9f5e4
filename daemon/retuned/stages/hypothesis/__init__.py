"""Stage 4, hypothesis: which kernels at which shapes are worth an experiment, and why. Pure.

``records``: what a belief is. ``believing``: from a drift report to beliefs. ``refining``: what an
experiment teaches. ``lessons``: what reasons of failure mean for the next try. ``stopping``: when
the next try no longer pays.
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

__all__ = [
    "Attempt",
    "Hypothesis",
    "HypothesisSettings",
    "Lesson",
    "Outlook",
    "Refinement",
    "ShapeCost",
    "StopReason",
    "consider",
    "hopeless",
    "hypothesize",
    "learn_from",
    "lesson_of",
    "look_elsewhere",
    "outlook",
    "refine",
    "tally",
    "unseen",
]
