"""A killed lab's leftovers go at the next start; what is asked for stays."""

from __future__ import annotations

from pathlib import Path

from retuned.lab.cleanup import sweep


def make(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.name.endswith((".so", ".json", ".partial")):
            path.write_text("x")
        else:
            path.mkdir()
            (path / "inside").write_text("x")


def test_work_in_progress_is_removed_and_results_stay(tmp_path: Path) -> None:
    kept = ("compiled/a.so", "artifacts/b", "evidence/c.json", "notes/running")
    gone = (
        "compiled/.child-1",
        "compiled/compile-2",
        "compiled/a.12.partial",
        "artifacts/.partial-3",
        "evidence/.d.partial",
        "notes/ended",
    )
    make(tmp_path, *kept, *gone)
    assert sweep(tmp_path, running={"running"}) == len(gone)
    assert all((tmp_path / name).exists() for name in kept)
    assert not any((tmp_path / name).exists() for name in gone)


def test_a_link_is_removed_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "lab" / "compiled").mkdir(parents=True)
    (tmp_path / "lab" / "compiled" / ".child-1").symlink_to(tmp_path / "elsewhere")
    assert sweep(tmp_path / "lab") == 1
    assert (tmp_path / "elsewhere").is_dir()


def test_a_lab_that_never_worked_has_nothing_to_sweep(tmp_path: Path) -> None:
    assert sweep(tmp_path / "absent") == 0
