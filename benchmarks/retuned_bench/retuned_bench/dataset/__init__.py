"""Data sets out of experiments: what was tried, what came of it, ready for training.

Pure but for `reading`, which asks a `Store`: no files, clock, network or device.
"""

from retuned_bench.dataset.knowledge import Knowledge
from retuned_bench.dataset.records import (
    Attempt,
    EpisodeRow,
    FileEntry,
    Format,
    Manifest,
    SftRow,
    Split,
)
from retuned_bench.dataset.rows import Maker
from retuned_bench.dataset.rules import REWARD_DEFINITION, reward_of
from retuned_bench.dataset.sources import group_of
from retuned_bench.dataset.splits import kin_of, split_of

__all__ = [
    "REWARD_DEFINITION",
    "Attempt",
    "EpisodeRow",
    "FileEntry",
    "Format",
    "Knowledge",
    "Maker",
    "Manifest",
    "SftRow",
    "Split",
    "group_of",
    "kin_of",
    "reward_of",
    "split_of",
]
