"""Options of a data set that command line and rows share."""

from __future__ import annotations

from enum import StrEnum

SEED = "retuned-93"
"""Of the usual split: the first of its kind by which each split has kernels of the catalog."""
UNKNOWN_LICENSE = "unknown"


class Format(StrEnum):
    """What a row is."""

    SFT = "sft"
    """A question and the best known answer."""
    EPISODES = "episodes"
    """Everything that was tried in one experiment, with rewards."""
