"""``retuned policy check`` and ``explain`` for people and machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from retuned.cli.validate import policy_app as app
from retuned.errors import PolicyInvalid

POLICIES = Path(__file__).resolve().parents[2] / "policies"


def check(path: Path, *flags: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["check", str(path), *flags])
    return result.exit_code, result.stdout


@pytest.mark.parametrize("path", sorted(POLICIES.glob("*.yaml")), ids=lambda p: p.stem)
def test_the_policies_that_ship_are_valid(path: Path) -> None:
    code, text = check(path, "--json")
    body = json.loads(text)
    assert (code, body["valid"], body["problems"]) == (0, True, [])
    code, text = check(path)
    assert (code, text.splitlines()[-1]) == (0, f"{path}: valid")
    assert len(text.splitlines()) == len(body["not_enforced"]) + 1


def test_what_one_machine_does_not_enforce_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    good = (POLICIES / "laptop-demo.yaml").read_text()
    path.write_text(good + "  experiments: {priorityClassName: low}\n")
    code, text = check(path, "--json")
    (told,) = json.loads(text)["not_enforced"]
    assert code == 0
    assert told["path"] == "spec.experiments.priorityClassName"
    assert told["line"] == len(good.splitlines()) + 1
    assert told["message"].startswith("acts in a cluster only; ")
    assert f"{path}:{told['line']}: {told['path']}: {told['message']}" in check(path)[1]


def test_an_invalid_policy_exits_1_with_path_line_and_message(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    good = (POLICIES / "laptop-demo.yaml").read_text()
    path.write_text(good.replace("minSpeedup", "minSpeedupp"))
    line = next(n for n, t in enumerate(good.splitlines(), 1) if "minSpeedup" in t)
    code, text = check(path, "--json")
    (problem,) = json.loads(text)["problems"]
    assert code == 1
    assert json.loads(text)["not_enforced"] == []
    assert (problem["path"], problem["line"]) == ("spec.validation.minSpeedupp", line)
    assert "did you mean minSpeedup?" in problem["message"]
    code, text = check(path)
    assert code == 1
    assert text.startswith(f"{path}:{line}: spec.validation.minSpeedupp: unknown key")


@pytest.mark.parametrize(
    ("data", "line", "says"),
    [
        (b"a: &x 1\nb: *x\n", 2, "aliases"),
        (b"a: 1\na: 2\n", 2, "twice"),
        (b"a: \xff\n", 1, "UTF-8"),
        (b"#" * 300_000, None, "larger than"),
        (None, None, "cannot be read"),
    ],
)
def test_an_unreadable_one_exits_3_and_is_still_one_json_object(
    tmp_path: Path, data: bytes | None, line: int | None, says: str
) -> None:
    path = tmp_path / "odd.yaml"
    if data is not None:
        path.write_bytes(data)
    code, text = check(path, "--json")
    body = json.loads(text)
    assert code == 3
    assert body["valid"] is False
    assert body["error"].keys() == {"code", "where", "message"}
    assert body["error"]["where"].startswith(str(path))
    assert body["problems"][0]["line"] == line
    assert says in body["problems"][0]["message"]


def test_a_message_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "evil.yaml"
    path.write_text('"\\e[31m": 1\n')
    code, text = check(path)
    assert code == 1
    assert "\x1b" not in text


def test_a_folder_is_checked_as_the_setting_reads_it(tmp_path: Path) -> None:
    code, text = check(POLICIES, "--json")
    assert (code, json.loads(text)["valid"]) == (0, True)
    code, text = check(POLICIES)
    named = [line for line in text.splitlines() if line.endswith(": valid")]
    assert len(named) == len(list(POLICIES.glob("*.yaml")))
    assert check(tmp_path)[0] == 1
    assert "no policy is in this folder" in check(tmp_path)[1]


def test_of_a_folder_each_file_is_told_and_a_readable_one_is_no_error(tmp_path: Path) -> None:
    good = (POLICIES / "laptop-demo.yaml").read_text()
    (tmp_path / "a.yaml").write_text(good)
    (tmp_path / "b.yaml").write_text("a: 1\na: 2\n")
    (tmp_path / "notes.txt").write_text("no policy")
    code, text = check(tmp_path, "--json")
    body = json.loads(text)
    assert (code, body["valid"], "error" in body) == (3, False, False)
    assert [problem["file"] for problem in body["problems"]] == [str(tmp_path / "b.yaml")]
    (tmp_path / "b.yaml").write_text(good)  # each is good, and `retuned run` takes neither
    code, text = check(tmp_path, "--json")
    assert code == 1
    assert "is already in" in json.loads(text)["problems"][0]["message"]


# --- explain --------------------------------------------------------------------------------------


def explained(tmp_path: Path, rule: str, *flags: str) -> Any:
    path = tmp_path / "mine.yaml"
    policy = yaml.safe_load((POLICIES / "laptop-demo.yaml").read_text())
    policy["spec"]["liveProof"] = yaml.safe_load(rule)
    path.write_text(yaml.safe_dump(policy))
    result = CliRunner().invoke(app, ["explain", str(path), *flags], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout) if "--json" in flags else " ".join(result.stdout.split())


def test_a_policy_is_explained_field_by_field(tmp_path: Path) -> None:
    body = explained(tmp_path, "{mode: required}", "--json")
    fields = {each["path"]: each for each in body["fields"]}
    assert fields["spec.validation.minSpeedup"]["value"] == "1.02"
    assert fields["spec.gates[0].approvals.ttl"]["value"] == "1h"
    assert fields["spec.liveProof.mode"]["given"]
    assert "spec.liveProof.minEffect" not in fields
    whole = explained(tmp_path, "{mode: required}", "--json", "--all")
    fields = {each["path"]: each for each in whole["fields"]}
    assert fields["spec.liveProof.minEffect"]["value"] == "0.005"
    assert not fields["spec.liveProof.minEffect"]["given"]
    assert all(each["meaning"] for each in fields.values())
    text = explained(tmp_path, "{mode: required}", "--all")
    assert "spec.liveProof.minEffect 0.005 default Smallest difference of step time" in text


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("{mode: 'off'}", "No swap is measured on live traffic."),
        ("{mode: observe}", "The verdict is reported, and the swap is kept whatever it is."),
        ("{mode: required}", "helps: the swap is kept, once 20 pairs of 10 s confirm it."),
        ("{mode: required, longBlocks: 0}", "helps: the swap is kept."),
        ("{mode: required}", "no-measurable-effect: it rolls back."),
        ("{mode: required, onNoEffect: keep}", "is kept if GPU time is proven to be less"),
        ("{mode: required}", "or a swap cannot be switched off and on, nothing is swapped"),
        ("{mode: required, whenNotSwitchable: keep}", "kept without a measurement"),
        ("{mode: required, whenNotSwitchable: canary}", "(canary-replicas-unavailable)"),
        ("{mode: required, whenNotSwitchable: canary}", "with 2 additional pods at one time"),
        (
            "{mode: required, whenNotSwitchable: canary, canaryPairs: 3}",
            "with 6 additional pods at one time",
        ),
        ("{mode: required, whenNotSwitchable: canary}", "8 A/A pairs, then at most 16 pairs"),
        (
            "{mode: required, whenNotSwitchable: canary, canaryWindow: 5m, canaryLeaveOut: 2m}",
            "measured for 5 minutes after 2 minutes",
        ),
        ("{mode: required, switching: false}", "No swap is switched off and on in a serving"),
        ("{mode: observe, switching: false}", "No swap is switched off and on in a serving"),
        ("{mode: required, onTooLittleTraffic: keep}", "too-little-traffic: it is kept."),
        ("{mode: required, maxDuration: 10m, minEffect: 0.01}", "for at most 10 minutes"),
        ("{mode: required, minEffect: 0.01}", "under 1.00% do not count"),
        ("{mode: required}", "What Retuned itself adds to a step is measured once a day"),
        ("{ownOverhead: off}", "What Retuned itself adds to a step is not measured."),
        ("{mode: 'off'}", "What Retuned itself adds to a step is not measured."),
    ],
)
def test_a_live_proof_is_explained_by_what_follows(tmp_path: Path, rule: str, words: str) -> None:
    assert words in explained(tmp_path, rule)


def test_an_invalid_policy_is_not_explained(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text((POLICIES / "laptop-demo.yaml").read_text().replace("minSpeedup", "speed"))
    with pytest.raises(PolicyInvalid) as failed:
        CliRunner().invoke(app, ["explain", str(path)], catch_exceptions=False)
    assert failed.value.exit_code == 1
