"""Stage 3, drift: whether the workload left the one that the kernels were tuned for. Pure.

It decides in two stages: novelty (is the mix new?) and worth (does a retune pay?). Ordinary tests
alarm constantly on real traffic, so nothing here alarms on a p-value.

``learn`` makes a baseline, ``detect`` judges one window, ``adopt`` adds an accepted or tuned mix.
``compare`` compares two profiles without history, after ``alike`` made their keys comparable.
"""

from retuned.stages.drift.adoption import OneSided, adopt, alike
from retuned.stages.drift.baseline import comparable, learn
from retuned.stages.drift.compare import compare
from retuned.stages.drift.detect import detect
from retuned.stages.drift.records import DriftAction, DriftCode, DriftReason, DriftReport
from retuned.stages.drift.report import GpuObservation, Throttle, attributed, gpu_words
from retuned.stages.drift.settings import DEMO_SETTINGS, DriftSettings
from retuned.stages.drift.state import (
    DetectorState,
    Latency,
    Library,
    LibraryProfile,
    SizeClass,
)
from retuned.stages.drift.text import answer

__all__ = [
    "DEMO_SETTINGS",
    "DetectorState",
    "DriftAction",
    "DriftCode",
    "DriftReason",
    "DriftReport",
    "DriftSettings",
    "GpuObservation",
    "Latency",
    "Library",
    "LibraryProfile",
    "OneSided",
    "SizeClass",
    "Throttle",
    "adopt",
    "alike",
    "answer",
    "attributed",
    "comparable",
    "compare",
    "detect",
    "gpu_words",
    "learn",
]
