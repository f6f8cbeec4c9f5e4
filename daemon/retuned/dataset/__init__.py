"""Data sets out of experiments: what was tried, what came of it, ready for training.

Pure but for `reading`, which asks a `Store`: no files, clock, network or device.
"""

from retuned.dataset.knowledge import Knowledge
from retuned.dataset.records import Attempt, EpisodeRow, FileEntry, Format, Manifest, SftRow, Split
from retuned.dataset.rewards import REWARD_DEFINITION, reward_of
from retuned.dataset.rows import Maker
from retuned.dataset.sources import group_of
from retuned.dataset.splits import kin_of, split_of

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
