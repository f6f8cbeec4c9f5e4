"""Policies from files: every problem has a line, and nothing doubtful is a policy."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.expect import raises_code

from retuned.errors import PolicyInvalid, UnreadableInput
from retuned.store.policy_files import (
    PolicyFiles,
    check_policy,
    load_policies,
    load_policy,
    misread_in,
)
from retuned.strict_yaml import NotPlainYaml

GOOD = """\
apiVersion: retuned.dev/v1alpha1
kind: KernelTuningPolicy
metadata:
  name: test
spec:
  mode: Enforce
  validation:
    minSpeedup: 1.05
  gates:
  - name: one
    approvals: {required: 1, ttl: 24h}
  windows:
  - kind: allow
    schedule: "0 9 * * MON-THU"
    duration: 8h
    timeZone: Europe/Berlin
"""

# The policy of the reference, with every key; the meaning of each is checked below.
FULL = """\
apiVersion: retuned.dev/v1alpha1
kind: KernelTuningPolicy
metadata: {name: prod-llm, namespace: serving}
spec:
  priority: 100
  mode: Enforce
  selector: {matchLabels: {app: vllm}}
  kernels: {include: ["rmsnorm*","rope*"], exclude: ["*attention*"]}
  gpuModels: [MI300X]
  experiments:
    maxConcurrent: 1
    budget: {gpuHoursPerDay: 4, maxTrials: 64, trialDeadline: 15m}
    priorityClassName: retuned-experiment
    pauseWhen: {sloAlertFiring: true}
  validation:
    minSpeedup: 1.05
    confidence: 0.99
    maxVRAMIncrease: 512Mi
  gates:
  - name: low-risk-auto
    when: {risk: [low], env: [staging]}
    approvals: {required: 0}
  - name: prod-two-person
    when: {env: [prod]}
    approvals: {required: 2, from: [{group: gpu-platform},{user: grace}], distinctGroups: true,
                excludeRequester: true, allowServiceAccounts: false, ttl: 24h,
                requireComment: true}
  rollout:
    canary: {pods: 1, bake: 30m}
    waves: ["10%","50%","100%"]
    maxConcurrentSwaps: 1
    minHealthyPercent: 90
    minInterval: 10m
    analysis:
      interval: 1m
      failureLimit: 1
      inconclusiveLimit: 3
      noDataAs: Inconclusive
      metrics: [{name: ttft_p95, query: "q", max: "1.02x baseline", minSamples: 200}]
    autoRollback: {enabled: true, on: [AnalysisFailed, NumericMismatch, PodCrash, SLOAlert],
                   quarantine: 7d}
    postPromotionWatch: 24h
  windows:
  - {kind: allow, schedule: "0 9 * * MON-THU", duration: 8h, timeZone: Europe/Berlin,
     overrun: Finish}
  - {kind: deny, schedule: "0 0 20 12 *", duration: 360h, description: "year-end freeze"}
  breakGlass: {enabled: true, group: sre-leads, requireComment: true, maxPods: 1}
"""


def write(folder: Path, text: str | bytes, name: str = "policy.yaml") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def problems(folder: Path, text: str) -> list[tuple[str, int | None, str]]:
    return [(p.path, p.line, p.message) for p in check_policy(write(folder, text))]


def test_a_good_policy_has_no_problems(tmp_path: Path) -> None:
    assert problems(tmp_path, GOOD) == []


def test_every_key_of_the_schema_is_read(tmp_path: Path) -> None:
    spec = load_policy(write(tmp_path, FULL)).spec
    assert spec.rollout.canary.bake.total_seconds() == 1800
    assert spec.validation.max_vram_increase_bytes == 512 * 2**20
    assert [str(entry) for entry in spec.gates[1].approvals.from_] == [
        "group gpu-platform",
        "user grace",
    ]
    assert len(spec.rollout.auto_rollback.on) == 4  # a bare `on` is a key here, not a truth value
    assert spec.windows[1].duration.days == 15
    assert spec.experiments.budget.gpu_hours_per_day == 4.0


def test_the_digest_is_of_the_meaning_not_of_the_text(tmp_path: Path) -> None:
    plain = load_policy(write(tmp_path, GOOD))
    spaced = load_policy(write(tmp_path, "# a comment\n" + GOOD.replace("8h", "480m")))
    other = load_policy(write(tmp_path, GOOD.replace("1.05", "1.06")))
    assert plain.digest == spaced.digest
    assert plain.digest != other.digest


def test_a_policy_written_and_read_again_is_the_same(tmp_path: Path) -> None:
    policy = load_policy(write(tmp_path, FULL))
    again = load_policy(write(tmp_path, policy.model_dump_json(by_alias=True), "again.yaml"))
    assert again == policy  # JSON is YAML


@pytest.mark.parametrize(
    ("old", "new", "path", "line", "says"),
    [
        ("minSpeedup", "minSpedup", "spec.validation.minSpedup", 8, "did you mean minSpeedup?"),
        ("minSpeedup", "min_speedup", "spec.validation.min_speedup", 8, "did you mean minSpeedup?"),
        ("timeZone:", "timezone:", "spec.windows.0.timezone", 16, "did you mean timeZone?"),
        ("required: 1", "requird: 1", "spec.gates.0.approvals.requird", 11, "did you mean"),
        ("Europe/Berlin", "Europe/Berlim", "spec.windows.0.timeZone", 16, "unknown time zone"),
        ("MON-THU", "1-4", "spec.windows.0.schedule", 14, "by name"),
        ("8h", "8 hours", "spec.windows.0.duration", 15, "written like"),
        ("8h", "8", "spec.windows.0.duration", 15, "with a unit"),
        ("24h", "-24h", "spec.gates.0.approvals.ttl", 11, "written like"),
        ("24h", "0s", "spec.gates.0.approvals.ttl", 11, "longer than 0s"),
        ("1.05", "0.5", "spec.validation.minSpeedup", 8, "greater than or equal to 1"),
        ("1.05", ".inf", "spec.validation.minSpeedup", 8, "valid number"),
        ("1.05", "1e999", "spec.validation.minSpeedup", 8, "finite"),
        ("1.05", "yes", "spec.validation.minSpeedup", 8, "valid number"),
        ("required: 1", "required: '1'", "spec.gates.0.approvals.required", 11, "valid integer"),
        ("required: 1", "required: 1.0", "spec.gates.0.approvals.required", 11, "valid integer"),
        ("required: 1", "required: true", "spec.gates.0.approvals.required", 11, "valid integer"),
        ("mode: Enforce", "mode: enforce", "spec.mode", 6, "'Enforce'"),
        ("v1alpha1", "v1", "apiVersion", 1, "v1alpha1"),
        ("name: test", "name: Test_1", "metadata.name", 4, "pattern"),
        ("kind: allow", "kind: maybe", "spec.windows.0.kind", 13, "'allow'"),
    ],
)
def test_a_problem_names_its_path_line_and_what_is_accepted(
    tmp_path: Path, old: str, new: str, path: str, line: int, says: str
) -> None:
    assert old in GOOD
    found = problems(tmp_path, GOOD.replace(old, new))
    match = [p for p in found if p[0] == path]
    assert match, found
    assert match[0][1] == line
    assert says in match[0][2]


def test_every_problem_is_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    found = problems(tmp_path, GOOD.replace("1.05", "x").replace("8h", "x").replace("test", "X"))
    assert [line for _, line, _ in found] == [4, 8, 15]


def test_a_missing_key_has_the_line_of_what_it_is_missing_in(tmp_path: Path) -> None:
    assert problems(tmp_path, GOOD.replace("  mode: Enforce\n", "")) == [
        ("spec.mode", 5, "is required")
    ]
    headless = GOOD.replace("kind: KernelTuningPolicy\n", "")
    assert problems(tmp_path, headless) == [("kind", None, "is required")]


@pytest.mark.parametrize("text", ["", "# later\n", "---\n", "~\n"])
def test_a_file_that_says_nothing_is_told_what_it_needs(tmp_path: Path, text: str) -> None:
    ((path, _, message),) = problems(tmp_path, text)
    assert (path, message) == (
        "",
        "nothing is in this file; it needs apiVersion, kind, metadata, spec",
    )


def test_of_a_list_with_wrong_entries_the_entries_are_told_and_nothing_else(tmp_path: Path) -> None:
    found = problems(tmp_path, GOOD + "  rollout: {waves: [10, 100]}\n")
    assert [path for path, _, _ in found] == ["spec.rollout.waves.0", "spec.rollout.waves.1"]


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (GOOD.replace("  mode", "\tmode"), "tabs"),
        (GOOD.replace("  mode", " mode"), "column"),
        (GOOD.replace("  - name", "   - name"), "column"),
        (GOOD.replace("name: test", "name: my: test"), "': '"),
    ],
)
def test_wrong_indentation_is_told_with_what_to_look_at(
    tmp_path: Path, text: str, advice: str
) -> None:
    path = write(tmp_path, text)
    with raises_code(NotPlainYaml, "yaml-syntax", advice):
        load_policy(path)


@pytest.mark.parametrize(("field", "week"), [("0 25 * * MON", False), ("0 9 * * FRI-MON", True)])
def test_advice_about_weekdays_comes_with_weekdays_alone(
    tmp_path: Path, field: str, week: bool
) -> None:
    ((_, _, message),) = problems(tmp_path, GOOD.replace("0 9 * * MON-THU", field))
    assert ("SAT,SUN" in message) is week


@pytest.mark.parametrize(
    ("old", "new", "place", "truth"),
    [
        ("kind: allow", "kind: allow\n    overrun: off", "spec.windows.0.overrun", "off as false"),
        ("mode: Enforce", "mode: Enforce\n  on: 1", "spec.on", "on as true"),
        ("name: one", "name: y", "spec.gates.0.name", "y as true"),
        ("name: test", "name: No", "metadata.name", "No as false"),
        ("name: test", "name: 'no'", None, ""),
        ("name: test", "name: nobody", None, ""),
        ("name: test", "name: true", None, ""),
    ],
)
def test_words_that_kubernetes_takes_for_truths_have_their_place(
    tmp_path: Path, old: str, new: str, place: str | None, truth: str
) -> None:
    assert old in GOOD
    found = misread_in(write(tmp_path, GOOD.replace(old, new)))
    assert [each.path for each in found] == ([place] if place else [])
    for each in found:
        assert each.line is not None
        assert truth in each.message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("required: 3, distinctGroups: true, from: [{group: a}, {group: b}]", "impossible"),
        ("required: 2, distinctGroups: true", "impossible"),
        ("required: 2, from: [{user: ada}]", "impossible"),
        ("required: 1, from: [{user: ada, group: a}]", "either a group or a user"),
        ("required: 1, from: [{}]", "either a group or a user"),
        ("required: -1", "greater than or equal to 0"),
    ],
)
def test_a_gate_that_can_never_open_is_invalid(tmp_path: Path, text: str, says: str) -> None:
    (found,) = problems(tmp_path, GOOD.replace("required: 1", text))
    assert says in found[2]


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ("  rollout: {waves: ['50%', '10%', '100%']}\n", "must rise"),
        ("  rollout: {waves: ['50%']}\n", "end with 100%"),
        ("  rollout: {analysis: {noDataAs: Success}}\n", "Inconclusive"),
        ("  breakGlass: {enabled: true}\n", "names a group"),
        ("  kernels: {include: []}\n", "at least 1"),
    ],
)
def test_what_makes_no_sense_is_invalid(tmp_path: Path, extra: str, says: str) -> None:
    (found,) = problems(tmp_path, GOOD + extra)
    assert says in found[2]


def test_two_gates_of_one_name_are_invalid(tmp_path: Path) -> None:
    gate = "  - name: one\n    approvals: {required: 1, ttl: 24h}\n"
    (found,) = problems(tmp_path, GOOD.replace(gate, gate * 2))
    assert "two gates have the name one" in found[2]


# --- files an attacker would write -----------------------------------------------------------

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: [*b,*b,*b,*b,*b,*b,*b,*b]\n"


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        (BOMB, "yaml-alias", 2),
        ("a: &a\n  b: *a\n", "yaml-alias", 2),
        ("a: &a {x: 1}\nb:\n  <<: {x: 1}\n", "yaml-merge", 3),
        ("a: 1\nb: 2\na: 3\n", "yaml-duplicate-key", 3),
        ("a: !!python/object/apply:os.system ['true']\n", "yaml-tag", 1),
        ("a: !!str 5\n", "yaml-tag", 1),
        ("a: 1\n---\nb: 2\n", "yaml-documents", 2),
        ("a: 1\nb: " + "[" * 200_000, "yaml-too-deep", 2),
        ("- " * 100_000, "yaml-too-deep", 1),
        ("a: [\n", "yaml-syntax", 2),
        ("a: 1\n\tb: 2\n", "yaml-syntax", 2),
        ("a: 'x\n", "yaml-syntax", 2),
        ("a: 1\nb: 010\n", "yaml-octal", 2),
        ("? [1, 2]\n: x\n", "yaml-key", 1),
        ("a: [" + "1," * 30_000 + "]", "yaml-too-large", 1),
        ("a: 1\nb: \x01\n", "yaml-syntax", 2),
    ],
)
def test_what_is_not_plain_yaml_is_refused_with_its_line(
    tmp_path: Path, text: str, code: str, line: int
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(NotPlainYaml) as caught:
        load_policy(path)
    assert (caught.value.code, caught.value.line) == (code, line)
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == 3


def test_what_is_not_utf8_is_refused_with_its_byte(tmp_path: Path) -> None:
    path = write(tmp_path, b"a: 1\nb: \xff\xfe\n")
    with raises_code(NotPlainYaml, "not-utf8", "byte 8 ") as caught:
        load_policy(path)
    assert (caught.value.code, caught.value.line) == ("not-utf8", 2)


def test_a_huge_file_is_refused_without_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    with path.open("wb") as file:
        file.truncate(10 * 2**30)  # sparse
    start = time.monotonic()
    with raises_code(NotPlainYaml, "too-large", "256 KiB"):
        load_policy(path)
    assert time.monotonic() - start < 60.0


def test_a_pipe_is_refused_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(NotPlainYaml) as caught:
        load_policy(tmp_path / "pipe.yaml")
    assert caught.value.code == "not-a-file"


@pytest.mark.parametrize("text", ["", "# nothing\n", "[]\n", "text\n", "null\n", "3\n"])
def test_what_is_no_mapping_is_invalid(tmp_path: Path, text: str) -> None:
    assert problems(tmp_path, text)


def test_a_missing_file_is_unreadable(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput) as caught:
        load_policy(tmp_path / "none.yaml")
    assert caught.value.exit_code == 3


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(cut=st.integers(0, len(FULL)), noise=st.text("{}[]:,-&*!|>'\"#%@` \n\tax1\x00", max_size=6))
def test_any_damage_is_valid_or_refused_never_a_crash(
    tmp_path_factory: pytest.TempPathFactory, cut: int, noise: str
) -> None:
    path = write(tmp_path_factory.getbasetemp(), FULL[:cut] + noise + FULL[cut:], "fuzz.yaml")
    with contextlib.suppress(UnreadableInput):
        load_policy(path)


# --- several policies ------------------------------------------------------------------------


def test_a_folder_stands_for_its_yaml_files_in_order(tmp_path: Path) -> None:
    write(tmp_path, GOOD.replace("name: test", "name: b"), "1.yml")
    write(tmp_path, GOOD.replace("name: test", "name: a"), "2.yaml")
    write(tmp_path, "not: read", "readme.txt")
    assert [p.metadata.name for p in load_policies([tmp_path])] == ["b", "a"]


def test_two_policies_of_one_name_are_invalid(tmp_path: Path) -> None:
    for name in ("1.yaml", "2.yaml"):
        write(tmp_path, GOOD, name)
    with raises_code(PolicyInvalid, "policy-invalid", "metadata.name", str(tmp_path / "1.yaml")):
        load_policies([tmp_path])


def test_a_changed_policy_is_read_again_and_a_broken_one_closes_the_gate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path, GOOD)
    other = write(tmp_path, GOOD.replace("name: test", "name: other"), "other.yaml")
    policies = PolicyFiles([tmp_path])
    assert len(policies()) == 2
    write(tmp_path, GOOD.replace("Enforce", "Enforced!"))
    assert policies() == ()  # the whole set: the broken one may have been the strictest
    assert isinstance(policies.problem, PolicyInvalid)
    assert policies() == ()
    assert len(caplog.records) == 1  # told once, not at every look
    path.unlink()
    assert [p.metadata.name for p in policies()] == ["other"]
    other.unlink()
    assert policies() == ()


def test_a_policy_file_that_is_gone_closes_the_gate(tmp_path: Path) -> None:
    policies = PolicyFiles([tmp_path / "none.yaml"])
    assert policies() == ()
    assert isinstance(policies.problem, UnreadableInput)
