"""The traffic table and what is drawn from it."""

from __future__ import annotations

import gzip
import random
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_code, raises_invalid, raises_naming

from retuned.demo import make_traffic
from retuned.demo.traffic import Phase, QuantileTable, Scale, Traffic, inverse, load_table
from retuned.errors import UnreadableInput, UsageError

WORKLOADS = Path(__file__).resolve().parents[2] / ".." / "shared" / "workloads"


def _csv(rows: list[str], folder: Path, name: str) -> None:
    text = "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n"
    (folder / name).write_bytes(gzip.compress(text.encode()))


def _folder(tmp_path: Path, rows: list[str]) -> Path:
    for name in make_traffic.SOURCES.values():
        _csv(rows, tmp_path, name)
    return tmp_path


def _draws(phase: Phase, count: int = 4000) -> tuple[list[int], list[int], list[float]]:
    traffic, rng = Traffic(phase), random.Random(1)
    requests = [traffic.draw(rng) for _ in range(count)]
    return (
        [r.prompt_tokens for r in requests],
        [r.output_tokens for r in requests],
        [r.gap_s for r in requests],
    )


def test_the_committed_table_names_its_source_and_licence() -> None:
    table = load_table()
    assert "Patel" in table.citation
    assert "CC-BY" in table.citation
    assert set(table.services) == set(Phase)


def test_the_committed_medians_are_those_of_the_paper() -> None:
    table = load_table()
    middle = table.probabilities.index(0.5)
    chat, code = table.services[Phase.CHAT], table.services[Phase.CODE]
    assert (chat.prompt_tokens[middle], chat.output_tokens[middle]) == (1020, 129)
    assert (code.prompt_tokens[middle], code.output_tokens[middle]) == (1469, 13)


def test_the_committed_file_is_what_the_script_would_write() -> None:
    committed = (Path(make_traffic.__file__).parent / "data" / "azure_2023.json").read_text()
    assert make_traffic.render(load_table()) == committed


@pytest.mark.shared
def test_the_committed_table_is_recomputed_from_the_real_traces() -> None:
    if not WORKLOADS.is_dir():
        pytest.skip(f"no workloads at {WORKLOADS}")
    assert make_traffic.make_table(WORKLOADS) == load_table()


def test_drift_from_chat_to_code_turns_decoding_into_prefill() -> None:
    chat_in, chat_out, _ = _draws(Phase.CHAT)
    code_in, code_out, _ = _draws(Phase.CODE)
    assert 57 <= statistics.median(chat_in) <= 71
    assert 120 <= statistics.median(chat_out) <= 138
    assert 84 <= statistics.median(code_in) <= 100
    assert 11 <= statistics.median(code_out) <= 15
    assert sum(code_in) / sum(code_out) > 5 * sum(chat_in) / sum(chat_out)


@pytest.mark.parametrize("phase", list(Phase))
def test_every_request_fits_the_caps(phase: Phase) -> None:
    scale = Scale()
    prompts, outputs, gaps = _draws(phase)
    assert 1 <= min(prompts) <= max(prompts) <= scale.prompt_cap
    assert 1 <= min(outputs) <= max(outputs) <= scale.output_cap
    assert 0.0 <= min(gaps) <= max(gaps) <= scale.gap_cap_s


def test_the_same_seed_draws_the_same_requests() -> None:
    assert _draws(Phase.CHAT, 50) == _draws(Phase.CHAT, 50)


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_a_quantile_function_never_falls(a: float, b: float) -> None:
    table = load_table()
    values = table.services[Phase.CODE].prompt_tokens
    low, high = sorted((a, b))
    assert inverse(table.probabilities, values, low) <= inverse(table.probabilities, values, high)


@given(st.integers(0, len(load_table().probabilities) - 1))
def test_a_quantile_function_passes_through_its_points(index: int) -> None:
    table = load_table()
    values = table.services[Phase.CHAT].output_tokens
    found = inverse(table.probabilities, values, table.probabilities[index])
    assert found == pytest.approx(values[index])


@pytest.mark.parametrize("at", [-0.1, 1.1, float("nan")])
def test_a_probability_outside_of_zero_to_one_is_refused(at: float) -> None:
    with raises_naming(ValueError, "[0, 1]", "got "):
        inverse([0.0, 1.0], [1, 2], at)


def test_a_table_whose_quantiles_fall_is_refused() -> None:
    body = load_table().model_dump(mode="json")
    body["services"]["chat"]["output_tokens"][3] = 10_000
    with raises_invalid(names=("chat.output_tokens",)):
        QuantileTable.model_validate(body)


def test_a_table_whose_grid_does_not_reach_one_is_refused() -> None:
    body = load_table().model_dump(mode="json")
    body["probabilities"][-1] = 0.995
    with raises_invalid(names=("probabilities", "0 to 1")):
        QuantileTable.model_validate(body)


def test_a_small_trace_gives_its_own_quantiles(tmp_path: Path) -> None:
    rows = [f"2023-11-16 18:17:{s:02}.0000000,{100 + s},{10 + s}" for s in range(11)]
    table = make_traffic.make_table(_folder(tmp_path, rows[::-1]))  # order does not matter
    chat = table.services[Phase.CHAT]
    assert chat.requests == 11
    assert (chat.prompt_tokens[0], chat.prompt_tokens[-1]) == (100, 110)
    assert chat.output_tokens[table.probabilities.index(0.5)] == 15
    assert set(chat.gap_s) == {1.0}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with raises_code(UnreadableInput, "unreadable", "azure_llm_2023_conv.csv.gz"):
        make_traffic.make_table(tmp_path)


def test_a_truncated_gzip_is_refused(tmp_path: Path) -> None:
    folder = _folder(tmp_path, ["2023-11-16 18:17:00,1,1"] * 50)
    name = make_traffic.SOURCES[Phase.CHAT]
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[: len(whole) // 2])
    with raises_code(UnreadableInput, "damaged-gzip"):
        make_traffic.make_table(folder)


def test_a_bad_row_is_refused_with_its_number(tmp_path: Path) -> None:
    folder = _folder(tmp_path, ["2023-11-16 18:17:00,1,1", "2023-11-16 18:17:01,many,1"])
    with raises_code(UnreadableInput, "bad-row", "row 3", "'many'"):
        make_traffic.make_table(folder)


def test_other_columns_are_refused(tmp_path: Path) -> None:
    _folder(tmp_path, [])
    (tmp_path / make_traffic.SOURCES[Phase.CHAT]).write_bytes(gzip.compress(b"a,b\n1,2\n"))
    with raises_code(UnreadableInput, "wrong-columns", "TIMESTAMP,ContextTokens,GeneratedTokens"):
        make_traffic.make_table(tmp_path)


def test_a_trace_without_two_arrivals_is_refused(tmp_path: Path) -> None:
    with raises_code(UnreadableInput, "too-few-rows"):
        make_traffic.make_table(_folder(tmp_path, ["2023-11-16 18:17:00,1,1"]))


def test_the_script_wants_exactly_one_folder() -> None:
    with raises_naming(UsageError, "FOLDER"):
        make_traffic.main([])
