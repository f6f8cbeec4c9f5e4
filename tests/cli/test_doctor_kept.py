"""``retuned doctor`` says how much of experiments is kept."""

from __future__ import annotations

from pathlib import Path

from retuned.cli.doctor_checks import Level, Probe, places
from retuned.settings import load_settings


def test_variants_and_raw_samples_are_counted_with_when_they_go(tmp_path: Path) -> None:
    settings = load_settings(None, {"state_dir": tmp_path})
    (found,) = (each for each in places(Probe(), settings) if each.name == "kept")
    assert found.value.startswith("0 variants, 0 raw samples;")
    for name in ("a", "b"):
        (tmp_path / "lab" / "artifacts" / name).mkdir(parents=True)
    (found,) = (each for each in places(Probe(), settings) if each.name == "kept")
    assert found.level is Level.OK
    assert found.value.startswith("2 variants, 0 raw samples;")
    assert "after 30 days, signed evidence after 365" in found.value
