"""Stage 4, hypothesis: which kernels at which shapes are worth an experiment, and why. Pure.

``records``: what a belief is. ``believing``: from a drift report to beliefs. ``refining``: what an
experiment teaches.
"""

from retuned.stages.hypothesis.believing import hypothesize
from retuned.stages.hypothesis.records import Attempt, Hypothesis, HypothesisSettings, ShapeCost
from retuned.stages.hypothesis.refining import learn_from, look_elsewhere, refine

__all__ = [
    "Attempt",
    "Hypothesis",
    "HypothesisSettings",
    "ShapeCost",
    "hypothesize",
    "learn_from",
    "look_elsewhere",
    "refine",
]
