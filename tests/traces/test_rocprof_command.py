"""The command line for rocprofv3, read by a parser of its documented options."""

from __future__ import annotations

import argparse
import json
import math
import shlex
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expect import raises_naming
from typer.testing import CliRunner

from retuned.cli.commands import app
from retuned.errors import UsageError
from retuned.traces.rocprof_command import Periods, Table, rocprof_command

TRACES = PurePosixPath("/retuned/traces")


def documented() -> argparse.ArgumentParser:
    """What ROCm's manual says rocprofv3 takes, of 6.4 and newer."""
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--kernel-trace", action="store_true")
    parser.add_argument("--collection-period", nargs="+")
    units = ("hour", "min", "sec", "msec", "usec", "nsec")
    parser.add_argument("--collection-period-unit", choices=units)
    formats = ("csv", "json", "pftrace", "otf2", "rocpd")
    parser.add_argument("--output-format", nargs="+", choices=formats)
    parser.add_argument("--output-directory")
    parser.add_argument("--output-file")
    return parser


def read(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    at = words.index("--")
    begin = words.index("rocprofv3")
    return documented().parse_args(words[begin + 1 : at]), words[at + 1 :]


@given(
    every_s=st.floats(1.0, 3600.0),
    share=st.floats(0.002, 0.5),
    for_s=st.floats(3600.0, 86_400.0),
    table=st.sampled_from(Table),
)
def test_every_command_is_made_of_documented_options_and_records_what_was_asked(
    every_s: float, share: float, for_s: float, table: Table
) -> None:
    periods = Periods(every_s=every_s, length_s=every_s * share, for_s=for_s)
    words = rocprof_command(["vllm", "serve", "--x"], TRACES, periods=periods, table=table)
    found, server = read(words)
    delay, length, repeats = map(int, found.collection_period[0].split(":"))
    assert found.kernel_trace
    assert found.collection_period_unit == "msec"
    assert delay >= 1
    assert math.isclose(length, periods.length_s * 1e3, abs_tol=1.0)
    assert math.isclose(delay + length, every_s * 1e3, abs_tol=2.0)
    assert repeats >= 1, "0 is documented as for ever and carried out as once"
    assert (delay + length) * repeats <= for_s * 1e3 * 1.01
    assert (found.output_format, found.output_directory) == ([str(table)], str(TRACES))
    assert "%pid%" in found.output_file
    assert server == ["vllm", "serve", "--x"]


def test_what_lies_half_done_is_not_where_it_would_be_read_and_cleared_away() -> None:
    words = rocprof_command(["serve"], TRACES, periods=Periods())
    assert words[:2] == ["env", "ROCPROF_TMPDIR=/tmp"]
    for scratch in (TRACES, TRACES / "tmp"):
        with raises_naming(UsageError, str(scratch), str(TRACES)):
            rocprof_command(["serve"], TRACES, periods=Periods(), scratch=scratch)


@pytest.mark.parametrize(
    "wrong",
    [
        {"length_s": 0.0},
        {"length_s": 60.0},
        {"every_s": math.nan},
        {"length_s": math.nan},
        {"for_s": math.inf},
        {"for_s": math.nan},
        {"for_s": 10.0},
        {"every_s": 0.01, "length_s": 0.001, "for_s": 1e6},
        {"every_s": 1e6, "for_s": 1e7},
    ],
)
def test_periods_that_mean_nothing_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Periods(**wrong)


@pytest.mark.parametrize("folder", ["traces", "/traces/../etc", "/traces/%env{HOME}%"])
def test_a_folder_that_means_another_one_is_refused(folder: str) -> None:
    with raises_naming(UsageError, folder, "'..'", "'%'"):
        rocprof_command(["serve"], PurePosixPath(folder), periods=Periods())


def test_the_command_prints_a_line_that_a_shell_reads_back() -> None:
    asked = ["rocprof-command", "--every", "60", "--length", "0.2", "--hours", "1"]
    told = CliRunner().invoke(app, [*asked, "--", "serve", "a model", "$(x)"])
    assert told.exit_code == 0, told.output
    found, server = read(shlex.split(told.stdout))
    assert found.collection_period == ["59800:200:60"]
    assert server == ["serve", "a model", "$(x)"]


def test_machines_get_the_words_and_the_environment_in_a_database_is_told() -> None:
    told = CliRunner().invoke(
        app, ["rocprof-command", "--format", "rocpd", "--json", "--", "serve"]
    )
    body = json.loads(told.stdout)
    assert shlex.split(body["line"]) == body["command"]
    assert read(body["command"])[0].output_format == ["rocpd"]
    assert "environment" in told.stderr


def test_a_command_without_a_server_is_refused() -> None:
    with raises_naming(UsageError, "`--`"):
        CliRunner().invoke(app, ["rocprof-command"], catch_exceptions=False)
