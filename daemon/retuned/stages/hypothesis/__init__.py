"""Stage 4, hypothesis: which kernels at which shapes are worth an experiment, and why. Pure.

``records``: what a belief is. ``believing``: from a drift report to beliefs. ``refining``: what an
experiment teaches. ``lessons``: what reasons of failure mean for the next try. ``stopping``: when
the next try no longer pays.
"""

from retuned.stages.hypothesis.believing import hypothesize
from retuned.stages.hypothesis.counted import unseen
from retuned.stages.hypothesis.lessons import Lesson, hopeless, lesson_of, tally
from retuned.stages.hypothesis.records import Attempt, Hypothesis, HypothesisSettings, ShapeCost
from retuned.stages.hypothesis.refining import consider, learn_from, look_elsewhere, refine
from retuned.stages.hypothesis.stopping import Outlook, Refinement, StopReason, outlook

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
