"""Stage 3, drift: did the workload leave what the kernels were tuned for?

Two stages: novelty (is it new?) and worth (does it pay to act?). Ordinary tests alarm for ever on
real traffic, so nothing here alarms on a p-value. Pure.

``learn`` a baseline, ``detect`` window by window, ``adopt`` what was accepted or tuned for;
``compare`` two profiles without history, made ``alike`` where one of them knows fewer shapes.
"""

from retuned.stages.drift.adoption import OneSided, adopt, alike
from retuned.stages.drift.baseline import comparable, learn
from retuned.stages.drift.compare import compare
from retuned.stages.drift.detect import detect
from retuned.stages.drift.records import DriftAction, DriftCode, DriftReason, DriftReport
from retuned.stages.drift.report import GpuObservation, Throttle, gpu_words
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
    "comparable",
    "compare",
    "detect",
    "gpu_words",
    "learn",
]
