"""``.ci/run``: stricter than a laptop, also where nobody says that it is CI."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


REPORT = '<testsuite failures="0"/>'


def run_ci(
    folder: Path,
    *,
    report: str = REPORT,
    of_cluster: str = REPORT,
    of_vllm: str = REPORT,
    of_both: str = REPORT,
    lacks: str = "",
    **more: str,
) -> subprocess.CompletedProcess[str]:
    """Run it with a ``make`` that only says what it was asked for, and writes reports.

    Parameters
    ----------
    report, of_cluster, of_vllm, of_both
        What the tests, those on a cluster, those of a real vLLM and those of one in a cluster leave
        as their report.
    lacks
        What the machine lacks for a cluster; nothing by default.
    more
        Environment.
    """
    make = folder / "make"
    make.write_text(
        f"""#!/bin/sh
        case $1 in
          cluster-lacks) [ -z '{lacks}' ] || {{ echo '{lacks}'; exit 4; }} ;;
          test) printf %s '{report}' > "${{2##*=}}" ;;
          e2e) printf %s '{of_cluster}' > "${{2##*=}}" ;;
          vllm) printf %s '{of_vllm}' > "${{2##*=}}" ;;
          e2e-vllm) printf %s '{of_both}' > "${{2##*=}}" ;;
        esac
        [ $1 = cluster-lacks ] || echo "$1 CI=$CI"
        """
    )
    make.chmod(0o755)
    env = {k: v for k, v in os.environ.items() if k not in ("CI", "RETUNED_E2E")} | more
    env["PATH"] = f"{folder}:{env['PATH']}"
    return subprocess.run([ROOT / ".ci" / "run"], env=env, capture_output=True, text=True)


def test_ci_says_itself_that_it_is_ci(tmp_path: Path) -> None:
    done = run_ci(tmp_path)
    assert done.stdout.splitlines() == [
        "check CI=true",
        "cluster-tools CI=true",
        "monitoring-tools CI=true",
        "browser-packages CI=true",
        "test CI=true",
        "e2e CI=true",
        "vllm-cpu CI=true",
        "vllm CI=true",
        "e2e-vllm CI=true",
    ]
    assert done.returncode == 0, done.stderr


def test_tests_that_end_without_their_report_are_not_green(tmp_path: Path) -> None:
    done = run_ci(tmp_path, report="")
    assert done.returncode == 1
    assert "before their report" in done.stderr
    assert "e2e" not in done.stdout


def test_tests_on_a_cluster_that_end_without_their_report_are_not_green(tmp_path: Path) -> None:
    done = run_ci(tmp_path, of_cluster="")
    assert done.returncode == 1
    assert "before their report" in done.stderr


def test_tests_of_a_real_vllm_that_end_without_their_report_are_not_green(tmp_path: Path) -> None:
    for lane in ({"of_vllm": ""}, {"of_both": ""}):
        done = run_ci(tmp_path, **lane)
        assert done.returncode == 1
        assert "before their report" in done.stderr


def test_a_machine_without_a_cluster_is_told_so_and_serves_vllm(tmp_path: Path) -> None:
    done = run_ci(tmp_path, lacks="missing: root")
    assert done.returncode == 0
    assert "e2e" not in done.stdout
    assert "vllm CI=true" in done.stdout
    told = done.stderr.splitlines()
    assert told[-2] == "THE END-TO-END LANE DID NOT RUN: missing: root"
    assert told[-1].startswith("THE E2E-VLLM LANE DID NOT RUN")


def test_lanes_that_would_not_end_within_the_hour_are_told_so_in_the_last_lines(
    tmp_path: Path,
) -> None:
    done = run_ci(tmp_path, LATEST_S="-1")
    assert done.returncode == 0
    assert "e2e" not in done.stdout
    assert "vllm" not in done.stdout
    lanes = [line.split(" LANE")[0] for line in done.stderr.splitlines()]
    assert lanes == ["THE END-TO-END", "THE VLLM", "THE E2E-VLLM"]


def test_lanes_that_are_demanded_run_however_late_it_is(tmp_path: Path) -> None:
    said = run_ci(tmp_path, LATEST_S="-1", RETUNED_E2E="required").stdout
    assert "e2e CI=true" in said
    assert "vllm CI=true" in said
    assert "e2e-vllm CI=true" in said


def test_a_machine_without_a_cluster_is_a_failure_where_one_is_demanded(tmp_path: Path) -> None:
    done = run_ci(tmp_path, lacks="missing: root", RETUNED_E2E="required")
    assert done.returncode == 1
    assert "missing: root" in done.stderr
