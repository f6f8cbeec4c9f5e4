"""Settings: file < environment < flags, and nothing unknown anywhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.expect import raises_code, raises_naming

from retuned.errors import UnreadableInput, UsageError
from retuned.settings import PREFIX, RESERVED, Settings, load_settings

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("RETUNED_"):
            monkeypatch.delenv(name)


def write(folder: Path, text: str, name: str = "retuned.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_without_anything_the_defaults_hold() -> None:
    settings = load_settings()
    assert settings.window_s == 300.0
    assert settings.policy_files == ()  # and so nothing is ever swapped
    assert settings.metrics_address == "127.0.0.1"
    assert settings.sockets == settings.state_dir / "sockets"


def test_each_layer_is_stronger_than_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write(tmp_path, "window_s: 10\nsettle_s: 10\nmax_shapes: 10\n")
    monkeypatch.setenv("RETUNED_SETTLE_S", "20")
    monkeypatch.setenv("RETUNED_MAX_SHAPES", "20")
    settings = load_settings(config, {"max_shapes": 30, "target": None})
    assert (settings.window_s, settings.settle_s, settings.max_shapes) == (10.0, 20.0, 30)
    assert settings.target == "local"  # a flag that was not given


def test_toml_is_read_as_well(tmp_path: Path) -> None:
    config = write(tmp_path, 'env = "prod"\n[labels]\napp = "vllm"\n', "retuned.toml")
    settings = load_settings(config)
    assert (settings.env, settings.labels) == ("prod", {"app": "vllm"})


def test_the_environment_may_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETUNED_CONFIG", str(write(tmp_path, "target: a\n")))
    assert load_settings().target == "a"
    assert load_settings(write(tmp_path, "target: b\n", "other.yaml")).target == "b"


def test_lists_and_pairs_are_written_plainly_in_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RETUNED_WATCH_DIRS", "/a:~/b")
    monkeypatch.setenv("RETUNED_LAB_CORES", "0,2-4")
    monkeypatch.setenv("RETUNED_GROUP_MAP", "wheel=sre-oncall, user:ada=sre-leads")
    settings = load_settings()
    assert settings.watch_dirs == (Path("/a"), Path.home() / "b")
    assert settings.lab_cores == (0, 2, 3, 4)
    assert settings.group_map == {"wheel": "sre-oncall", "user:ada": "sre-leads"}


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("target: a\nwindo_s: 10\n", 2, "did you mean window_s?"),
        ("window_s: soon\n", 1, "valid number"),
        ("\n\nmetrics_port: 99999\n", 3, "65535"),
        ("lab_cores: [0, -1]\n", 1, "lab_cores.1"),
        ("lab_cores: x\n", 1, "written like 0,2-3"),
        ("labels: {a: 1}\n", 1, "valid string"),
        ("window_s: .inf\n", 1, "valid number"),
        ("window_s: 0\n", 1, "greater than 0"),
        ("detector_preset: wild\n", 1, "'production' or 'demo'"),
        ("- a\n", 1, "expected"),
    ],
)
def test_a_fault_in_the_file_names_its_line(
    tmp_path: Path, text: str, line: int, says: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        load_settings(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert says in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_file_of_another_kind_is_refused_in_a_few_lines() -> None:
    path = ROOT / "policies" / "laptop-demo.yaml"
    with raises_naming(UsageError, ":5: apiVersion", ":6: kind", "'apiVersion'") as told:
        load_settings(path)
    assert len(str(told.value)) < 1000


def test_a_file_that_is_no_plain_yaml_is_unreadable_and_names_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, "target: a\ntarget: b\n")
    with raises_code(UnreadableInput, "yaml-duplicate-key", "'target'", "line 1") as caught:
        load_settings(path)
    assert (caught.value.where, caught.value.exit_code) == (f"{path}:2", 3)


def test_a_fault_in_toml_names_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, 'target = "a"\nwindo_s = 10\n', "retuned.toml")
    with raises_naming(UsageError, f"{path}:2: windo_s", "window_s?"):
        load_settings(path)
    broken = write(tmp_path, "target = \n", "broken.toml")
    with raises_code(UnreadableInput, "not-toml", "broken.toml", "line 1") as caught:
        load_settings(broken)
    assert (caught.value.code, caught.value.where) == ("not-toml", str(broken))


def test_a_file_that_is_not_there_is_unreadable_and_named(tmp_path: Path) -> None:
    with raises_code(UnreadableInput, "cannot-open", "none.yaml") as caught:
        load_settings(tmp_path / "none.yaml")
    assert (caught.value.code, caught.value.exit_code) == ("cannot-open", 3)
    assert caught.value.where == str(tmp_path / "none.yaml")


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert load_settings(write(tmp_path, "# nothing yet\n")).target == "local"


@pytest.mark.parametrize("name", ["RETUNED_WINDOWS_S", "retuned_window", "RETUNED_X"])
def test_an_unknown_variable_is_refused_with_the_nearest_name(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "1")
    with raises_naming(UsageError, name) as caught:
        load_settings()
    assert "did you mean RETUNED_WINDOW_S?" in str(caught.value) or name == "RETUNED_X"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("RETUNED_CONFIG_FILE", "RETUNED_CONFIG?"),
        ("RETUNED_RUNTIMES", "RETUNED_RUNTIME?"),
        ("RETUNED_TORCHES", "RETUNED_TORCH?"),
    ],
)
def test_a_longer_name_than_one_that_belongs_to_others_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, near: str
) -> None:
    monkeypatch.setenv(name, "1")
    with raises_naming(UsageError, name, near):
        load_settings()


def test_every_variable_that_the_code_reads_is_known_or_left_aside() -> None:
    """The daemon inherits what the demo and the runtime are told; it must start all the same."""
    files = [*ROOT.glob("daemon/**/*.py"), ROOT / "scripts" / "setup"]
    read = {
        name
        for file in files
        for name in re.findall(r"\bRETUNED_[A-Z_]*[A-Z]\b", file.read_text(encoding="utf-8"))
    }
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    assert read - known == RESERVED


@pytest.mark.parametrize("name", ["RETUNED_RUNTIME", "RETUNED_TORCH"])
def test_names_that_belong_to_others_are_left_aside(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "off")
    load_settings()


def test_a_fault_names_the_variable_or_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    with raises_naming(UsageError, "flag max_shapes: max_shapes", "got 0"):
        load_settings(None, {"max_shapes": 0})
    with raises_naming(UsageError, "flag widow_s", "window_s?"):
        load_settings(None, {"widow_s": 1})
    monkeypatch.setenv("RETUNED_LABELS", "app")
    with raises_naming(UsageError, "environment RETUNED_LABELS", "a=b,c=d"):
        load_settings()


@pytest.mark.parametrize("cores", ["0-999999999", "a", "1-", "3-x"])
def test_odd_cores_are_refused_quickly(monkeypatch: pytest.MonkeyPatch, cores: str) -> None:
    monkeypatch.setenv("RETUNED_LAB_CORES", cores)
    with raises_naming(UsageError, "environment RETUNED_LAB_CORES", "0,2-3"):
        load_settings()


def test_every_setting_says_what_it_does() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert field.description.rstrip().endswith("."), name


def test_the_configuration_page_is_current() -> None:
    script = ROOT / "scripts" / "configuration_docs.py"
    done = subprocess.run([sys.executable, str(script), "--check"], check=False)
    assert done.returncode == 0, f"run {script.relative_to(ROOT)}"


def test_bounds_of_live_kernels_are_read_from_every_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {"pkg.ops:gather": {"index_ptr": (0, "n_rows - 1"), "count_ptr": (-100, 7)}}
    text = (
        'kernel_bounds:\n  "pkg.ops:gather": {index_ptr: [0, n_rows - 1], count_ptr: [-100, 7]}\n'
    )
    assert load_settings(write(tmp_path, text)).kernel_bounds == wanted
    said = '{"pkg.ops:gather": {"index_ptr": [0, "n_rows - 1"], "count_ptr": [-100, 7]}}'
    monkeypatch.setenv("RETUNED_KERNEL_BOUNDS", said)
    assert load_settings().kernel_bounds == wanted


@pytest.mark.parametrize(
    "bounds",
    ["[5, 4]", "[0]", "[0, 1.5]", "[true, 2]", "[0, n + 1]", "[0, n - 1 - 1]", "[n, 5]", "7"],
)
def test_bounds_that_say_nothing_are_refused(tmp_path: Path, bounds: str) -> None:
    text = f'kernel_bounds:\n  "pkg.ops:gather": {{index_ptr: {bounds}}}\n'
    with raises_naming(UsageError, "kernel_bounds.pkg.ops:gather.index_ptr"):
        load_settings(write(tmp_path, text))


def test_bounds_in_the_environment_that_are_no_json_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RETUNED_KERNEL_BOUNDS", "index_ptr=5")
    with raises_naming(UsageError, "environment RETUNED_KERNEL_BOUNDS", "JSON"):
        load_settings()
