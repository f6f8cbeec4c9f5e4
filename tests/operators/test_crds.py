from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from tests.expect import raises_code, raises_naming
from tests.operators import examples
from tests.operators import structural as kubernetes
from tests.operators.versions import VERSIONS

from retuned.api.values import Condition, ConditionStatus, camel, with_condition
from retuned.contract import Guard
from retuned.errors import UnreadableInput
from retuned.stages.gate import KernelTuningPolicy
from retuned.stages.proposal import Proposal
from retuned.store.policy_files import load_policy
from retuned_operator import schema as crds
from retuned_operator.schema import KINDS, CustomResource, definition_of, read, schema_of, write
from retuned_operator.schema.__main__ import files, main
from retuned_operator.schema.objects import R
from retuned_operator.schema.rules import RULES
from retuned_operator.schema.structural import NotStructural, filled, structural

ROOT = Path(__file__).parents[2]
POLICIES = sorted((ROOT / "policies").glob("*.yaml"))
EXAMPLES: dict[str, dict[str, Any]] = {
    "TuningTarget": examples.a_target(),
    "KernelExperiment": examples.an_experiment(),
    "SwapProposal": examples.a_swap(),
    "SwapDecision": examples.a_decision(),
    "TuningFreeze": examples.a_freeze(),
}
MODELS: dict[str, Any] = {kind.kind: kind.model for kind in KINDS}
SCHEMAS = {kind.kind: schema_of(kind) for kind in KINDS}


def kind_called(name: str) -> CustomResource:
    return next(kind for kind in KINDS if kind.kind == name)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
class TestEveryKind:
    def test_has_a_schema_that_an_api_server_takes(self, kind: CustomResource) -> None:
        assert kubernetes.problems(SCHEMAS[kind.kind]) == []

    def test_bounds_everything_that_a_rule_could_walk_over(self, kind: CustomResource) -> None:
        for part in ("spec", "status"):
            assert list(kubernetes.unbounded(SCHEMAS[kind.kind]["properties"][part])) == []

    @pytest.mark.parametrize("version", VERSIONS)
    def test_is_a_definition_that_every_supported_version_knows(
        self, kind: CustomResource, version: str
    ) -> None:
        kubernetes_validate.validate(definition_of(kind), version, strict=True)

    def test_describes_every_field(self, kind: CustomResource) -> None:
        assert list(undescribed(SCHEMAS[kind.kind])) == []

    def test_has_status_short_name_category_and_columns(self, kind: CustomResource) -> None:
        spec = definition_of(kind)["spec"]
        version = spec["versions"][0]
        assert version["subresources"] == {"status": {}}
        assert spec["names"]["categories"] == ["retuned"]
        assert len(spec["names"]["shortNames"]) == 1
        assert version["additionalPrinterColumns"][-1]["name"] == "Age"

    def test_shows_columns_that_exist(self, kind: CustomResource) -> None:
        for column in kind.columns:
            node = SCHEMAS[kind.kind]
            for part in re.findall(r"\.([A-Za-z]+)", column.path.split("[")[0]):
                node = node["properties"][part]

    def test_has_conditions_as_kubernetes_writes_them(self, kind: CustomResource) -> None:
        conditions = SCHEMAS[kind.kind]["properties"]["status"]["properties"]["conditions"]
        assert conditions["x-kubernetes-list-map-keys"] == ["type"]
        assert set(conditions["items"]["properties"]) == {
            "type",
            "status",
            "reason",
            "message",
            "lastTransitionTime",
            "observedGeneration",
        }

    def test_has_rules_only_at_places_that_exist_and_each_says_what_is_wrong(
        self, kind: CustomResource
    ) -> None:
        for rules in RULES[kind.kind].values():
            for rule in rules:
                assert rule.message
                assert len(rule.expression) < 1024
        assert "x-kubernetes-validations" in yaml.safe_dump(SCHEMAS[kind.kind])


def undescribed(schema: Any, path: str = "") -> Any:
    for name, below in schema.get("properties", {}).items():
        if "description" not in below and (path, name) != ("", "metadata"):
            yield f"{path}.{name}"
        inner = below.get("items", below)
        yield from undescribed(inner, f"{path}.{name}")


def test_short_names_and_plurals_differ() -> None:
    assert len({kind.short for kind in KINDS}) == len(KINDS)
    assert len({kind.plural for kind in KINDS}) == len(KINDS)


def test_the_charts_copy_of_the_definitions_is_current() -> None:
    folder = ROOT / "charts" / "retuned" / "files" / "crds"
    there = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.yaml")}
    assert there == files(), (
        "run: python -m retuned_operator.schema --write charts/retuned/files/crds"
    )


def test_the_definitions_are_written_the_same_every_time(tmp_path: Path) -> None:
    assert main(["--write", str(tmp_path)]) == 0
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert main(["--write", str(tmp_path)]) == 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first


def test_all_definitions_are_one_stream_for_kubectl(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    printed = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [body["spec"]["names"]["kind"] for body in printed] == [kind.kind for kind in KINDS]


def test_another_argument_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--folder"]) == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_object_fits_its_schema_and_comes_back_as_it_was(name: str) -> None:
    body = EXAMPLES[name]
    resource = read(MODELS[name], body)
    written = write(resource)
    for part in ("spec", "status"):
        schema = SCHEMAS[name]["properties"][part]
        assert kubernetes.invalid(written[part], schema) == []
    assert read(MODELS[name], written) == resource


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_servers_defaults_are_the_models_defaults(name: str) -> None:
    stored = filled(EXAMPLES[name], SCHEMAS[name])
    assert read(MODELS[name], stored).spec == read(MODELS[name], EXAMPLES[name]).spec
    assert stored["spec"] == write(read(MODELS[name], EXAMPLES[name]))["spec"]


@pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.stem)
def test_a_policy_file_is_an_object_as_it_stands(path: Path) -> None:
    file = yaml.safe_load(path.read_text(encoding="utf-8"))
    schema = SCHEMAS["KernelTuningPolicy"]
    assert kubernetes.invalid(file["spec"], schema["properties"]["spec"]) == []
    stored = filled(file | {"metadata": examples.metadata(file["metadata"]["name"])}, schema)
    in_cluster = read(crds.PolicyObject, stored).stage_policy()
    assert in_cluster.spec == load_policy(path).spec


def test_a_policys_digest_does_not_change_with_defaults_labels_or_notes() -> None:
    path = next(path for path in POLICIES if path.stem == "production-two-person")
    file = yaml.safe_load(path.read_text(encoding="utf-8"))
    plain = file | {"metadata": examples.metadata("prod")}
    noted = file | {
        "metadata": examples.metadata("prod", labels={"team": "x"}, annotations={"a/b": "c"})
    }
    noted = filled(noted, SCHEMAS["KernelTuningPolicy"])
    one, other = (read(crds.PolicyObject, body).stage_policy() for body in (plain, noted))
    assert one.digest == other.digest
    named = file | {"metadata": {"name": "prod", "namespace": "serving"}}
    local = KernelTuningPolicy.model_validate_json(json.dumps(named))
    assert one.digest == local.digest


def test_a_quantity_may_be_a_number_or_a_text() -> None:
    schema = SCHEMAS["KernelTuningPolicy"]["properties"]["spec"]
    size = schema["properties"]["validation"]["properties"]["maxVRAMIncrease"]
    assert size["x-kubernetes-int-or-string"] is True
    for value in (1024, "2Mi"):
        assert kubernetes.invalid(value, {"type": "object", "properties": {"a": size}}) != []
        assert kubernetes.invalid({"a": value}, {"type": "object", "properties": {"a": size}}) == []


def test_a_plan_becomes_an_experiment_and_the_same_plan_again() -> None:
    plan = examples.a_plan()
    stored = filled(examples.an_experiment(), SCHEMAS["KernelExperiment"])
    assert read(crds.KernelExperiment, stored).spec.stage_plan() == plan


weights = st.floats(min_value=0, max_value=1e9, allow_nan=False)
axes = st.dictionaries(st.sampled_from("MNKH"), st.integers(0, 2**40), max_size=4)


@given(st.lists(st.tuples(axes, weights), min_size=1, max_size=8), st.booleans())
def test_any_plan_survives_the_way_through_an_object(
    shapes: list[tuple[dict[str, int], float]], invariant: bool
) -> None:
    plan = examples.a_plan(batch_invariant=invariant)
    workloads = tuple(
        plan.workloads[0].model_copy(update={"axes": a, "weight": w}) for a, w in shapes
    )
    plan = plan.model_copy(update={"workloads": workloads})
    spec = crds.experiment_spec(
        plan,
        target="chat",
        gpu_model="MI300X",
        policy=crds.PolicyRef(name="p", generation=1, digest=examples.POLICY),
    )
    body = examples.an_object("KernelExperiment", "exp", spec)
    assert read(crds.KernelExperiment, body).spec.stage_plan() == plan


def test_a_proposal_becomes_an_object_and_the_same_proposal_again() -> None:
    stored = filled(examples.a_swap(), SCHEMAS["SwapProposal"])
    assert read(crds.SwapProposal, stored).stage_proposal() == examples.a_proposal()


bounds = st.dictionaries(
    st.sampled_from("MNK"), st.tuples(st.integers(0, 99), st.integers(100, 2**40)), max_size=3
)


@given(bounds, st.integers(1, 20), st.floats(0, 1))
def test_any_proposal_survives_the_way_through_an_object(
    bound: dict[str, tuple[int, int]], attempt: int, share: float
) -> None:
    proposal: Proposal = examples.a_proposal(
        guard=Guard(bounds=bound), attempt=attempt, share=share
    )
    spec = crds.proposal_spec(proposal, target="chat", gpu_model="MI300X", experiment="exp-1")
    body = examples.an_object("SwapProposal", "swp", spec)
    assert read(crds.SwapProposal, body).stage_proposal() == proposal


def test_a_proposal_without_evidence_or_environment_is_not_written() -> None:
    for absent in ("evidence", "environment"):
        proposal = examples.a_proposal().model_copy(update={absent: None})
        with raises_naming(ValueError, "proposal", "environment"):
            crds.proposal_spec(proposal, target="chat", gpu_model="MI300X", experiment="e")


def test_the_time_of_proposals_decisions_and_freezes_is_the_servers() -> None:
    proposal = read(crds.SwapProposal, examples.a_swap())
    assert proposal.stage_proposal().created_at == examples.NOW
    made_up = proposal.model_copy(update={"metadata": crds.ObjectMeta(name="swp-1")})
    with raises_naming(ValueError, "proposal", "creation time"):
        made_up.stage_proposal()
    decision = read(crds.SwapDecision, examples.a_decision())
    assert decision.stage_decision("p").at == examples.NOW
    with raises_naming(ValueError, "decision", "creation time"):
        decision.model_copy(update={"metadata": crds.ObjectMeta(name="swd-1")}).stage_decision("p")
    freeze = read(crds.TuningFreeze, examples.a_freeze())
    assert freeze.stage_freeze().at == examples.NOW
    with raises_naming(ValueError, "freeze", "creation time"):
        freeze.model_copy(update={"metadata": crds.ObjectMeta(name="stop")}).stage_freeze()


HOSTILE: list[tuple[type[Any], dict[str, Any], str]] = [
    (crds.SwapDecision, examples.a_decision(digest="sha256:short"), "spec.digest"),
    (crds.SwapDecision, examples.a_decision(decision="Maybe"), "spec.decision"),
    (crds.SwapDecision, examples.a_decision(user="ada\nroot"), "spec.user"),
    (crds.SwapDecision, examples.a_decision(user=["ada"]), "spec.user"),
    (crds.SwapDecision, examples.a_decision(groups=["g"] * 65), "spec.groups"),
    (crds.SwapDecision, examples.a_decision(comment="x" * 4001), "spec.comment"),
    (crds.SwapDecision, examples.a_decision(policyGeneration=True), "spec.policyGeneration"),
    (crds.SwapDecision, examples.a_decision(approved=True), "spec.approved"),
    (crds.SwapDecision, examples.a_decision(**{"a\nb": True}), "spec.a?b"),
    (crds.SwapDecision, examples.a_decision(policy_digest=None), "spec.policy_digest"),
    (crds.TuningFreeze, examples.a_freeze(until="tomorrow"), "spec.until"),
    (crds.TuningFreeze, examples.a_freeze(until="2026-01-01T00:00:00"), "spec.until"),
    (crds.TuningFreeze, examples.a_freeze(stopPolicy="hold"), "spec.stopPolicy"),
    (crds.SwapProposal, examples.a_swap(guard={"bounds": {"M": [9, 1]}}), "spec.guard"),
    (crds.SwapProposal, examples.a_swap(guard={"bounds": {"M": [1, 2, 3]}}), "spec.guard"),
    (crds.SwapProposal, examples.a_swap(share=1.5), "spec.share"),
    (
        crds.SwapProposal,
        examples.a_swap(speedup={"lower": 2, "point": 1, "upper": 3, "confidence": 0.99}),
        "spec.speedup",
    ),
    (crds.KernelExperiment, examples.an_experiment(plan="../../etc"), "spec.plan"),
    (crds.KernelExperiment, examples.an_experiment(kernel={"name": "k"}), "spec.kernel.shapes"),
    (crds.KernelExperiment, examples.an_experiment(budget={"maxSeconds": 0}), "spec.budget"),
    (crds.TuningTarget, examples.a_target() | {"spec": None}, "spec"),
    (crds.TuningTarget, examples.a_target() | {"kind": "Pod"}, "kind"),
]


@pytest.mark.parametrize(("model", "body", "place"), HOSTILE)
def test_a_hostile_object_is_refused_with_its_name_and_place(
    model: type[R], body: dict[str, Any], place: str
) -> None:
    with raises_code(UnreadableInput, "object-invalid", place) as caught:
        read(model, body)
    assert body["metadata"]["name"] in caught.value.where
    assert "\n" not in str(caught.value)


def test_an_object_that_is_no_json_is_refused() -> None:
    for spec in ({"a": float("nan")}, {"a": {1, 2}}):
        with raises_code(UnreadableInput, "not-json"):
            read(crds.SwapDecision, examples.a_decision() | {"spec": spec})


def test_an_object_that_has_not_changed_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    whole = crds.TuningTarget.model_validate_json

    def counted(text: str, **how: Any) -> crds.TuningTarget:
        texts.append(text)
        return whole(text, **how)

    monkeypatch.setattr(crds.TuningTarget, "model_validate_json", counted)
    bodies = [
        examples.an_object("TuningTarget", f"kept-{n}", examples.a_target()["spec"])
        for n in range(40)
    ]
    for _ in range(5):
        found = [read(crds.TuningTarget, body) for body in bodies]
    assert len(texts) == len(bodies)
    changed = bodies[7] | {"spec": bodies[7]["spec"] | {"mode": "Observe"}}
    assert read(crds.TuningTarget, changed).spec.mode != found[7].spec.mode
    assert len(texts) == len(bodies) + 1


def test_an_object_larger_than_a_server_holds_is_refused() -> None:
    body = examples.a_decision(comment="x" * 3_000_000)
    with raises_code(UnreadableInput, "object-too-large"):
        read(crds.SwapDecision, body)


def test_metadata_of_another_kind_does_not_steer_the_message() -> None:
    body = examples.a_decision() | {"metadata": ["\x1b[31m"]}
    with raises_code(UnreadableInput, "object-invalid", "(no name)", "metadata"):
        read(crds.SwapDecision, body)
    body = examples.a_decision() | {"metadata": {"name": "\x1b[31mred\nnew line"}}
    with pytest.raises(UnreadableInput) as caught:
        read(crds.SwapDecision, body)
    assert "\x1b" not in caught.value.where
    assert "\n" not in caught.value.where


class Ambiguous(BaseModel):
    value: int | list[int]


class Endless(BaseModel):
    inside: list[Endless] = Field(default_factory=list)


class Anything(BaseModel):
    value: dict[str, object]


@pytest.mark.parametrize("model", [Ambiguous, Endless, Anything])
def test_a_model_that_no_schema_can_say_is_refused_when_it_is_written(
    model: type[BaseModel],
) -> None:
    with pytest.raises(NotStructural):
        structural(model)


def test_the_checker_itself_finds_what_an_api_server_refuses() -> None:
    good: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}
    assert kubernetes.problems(good) == []
    for bad in (
        {"$ref": "#/a"},
        {},
        {"type": "string", "default": 3},
        {"type": "number", "minimum": 1, "exclusiveMinimum": 2.0},
        {"type": "object", "additionalProperties": False},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"type": "array"},
        {
            "type": "array",
            "items": {"type": "object", "properties": {"k": {"type": "string"}}},
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["k"],
        },
    ):
        assert kubernetes.problems({"type": "object", "properties": {"a": bad}}) != []


@pytest.mark.parametrize("name", ["KernelExperiment", "SwapProposal"])
def test_no_field_of_a_spec_is_left_out_of_what_never_changes(name: str) -> None:
    mutable = {"KernelExperiment": {"suspend", "abort"}, "SwapProposal": {"abort"}}[name]
    spec = SCHEMAS[name]["properties"]["spec"]
    rules = " ".join(rule["rule"] for rule in spec["x-kubernetes-validations"])
    for field in spec["properties"]:
        fixed = f"self.{field} == oldSelf.{field}" in rules
        assert fixed is (field not in mutable), field


def test_a_condition_keeps_its_time_until_its_status_changes() -> None:
    def ready(status: ConditionStatus, hour: int, reason: str) -> Condition:
        return Condition(
            type="Ready",
            status=status,
            last_transition_time=examples.NOW.replace(hour=hour),
            reason=reason,
            message="",
        )

    first = with_condition((), ready(ConditionStatus.TRUE, 1, "A"))
    second = with_condition(first, ready(ConditionStatus.TRUE, 2, "B"))
    third = with_condition(second, ready(ConditionStatus.FALSE, 3, "C"))
    assert [c.last_transition_time.hour for c in (*first, *second, *third)] == [1, 1, 3]
    assert second[0].reason == "B"


def test_a_reason_code_becomes_a_conditions_reason() -> None:
    assert camel("missing-approvals") == "MissingApprovals"
    assert camel("") == "Unknown"
