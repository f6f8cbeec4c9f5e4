"""The policies that ship are the same policies in a cluster: one file, one meaning."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.charts.rendering import CHART, ROOT, Helm, Refused
from tests.expect import raises_naming
from tests.operators.structural import invalid
from tests.policies.test_example_policies import FRIDAY, TUESDAY, ask

from retuned.contract import TrustClass
from retuned.control.gate_facts import labels_of
from retuned.stages.gate import DecisionKind, GateReason, GateState, KernelTuningPolicy, policy_for
from retuned.stages.proposal import Risk
from retuned.store.policy_files import load_policy
from retuned_operator.manifests.injection import inject
from retuned_operator.manifests.settings import SidecarSettings
from retuned_operator.schema import KINDS, PolicyObject, TuningTarget, read, schema_of
from retuned_operator.schema.structural import filled

FILES = sorted((ROOT / "policies").glob("*.yaml"))
(KIND,) = (kind for kind in KINDS if kind.kind == "KernelTuningPolicy")
by_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def in_cluster(helm: Helm, shipped: str, **spec: Any) -> KernelTuningPolicy:
    """Return a shipped policy as the gate reads it from the API server."""
    entry = {"name": shipped, "namespace": "serving", "shipped": shipped} | (
        {"spec": spec} if spec else {}
    )
    (body,) = (
        each for each in helm.objects({"policies": [entry]}) if each["kind"] == "KernelTuningPolicy"
    )
    schema = schema_of(KIND)
    assert invalid(body, schema) == []
    stored = filled(body, schema)  # what the API server adds
    stored["metadata"] |= {"uid": "0b5c", "generation": 1, "resourceVersion": "7"}
    return read(PolicyObject, stored).stage_policy()


@by_file
def test_a_file_means_the_same_in_a_cluster_as_on_one_machine(helm: Helm, path: Path) -> None:
    assert in_cluster(helm, path.stem).spec == load_policy(path).spec


@by_file
def test_a_file_can_be_applied_as_it_is(path: Path) -> None:
    body = yaml.safe_load(path.read_text("utf-8"))
    assert invalid(body, schema_of(KIND)) == []
    assert body["metadata"]["name"] == path.stem
    copied = CHART / "files" / "policies" / path.name
    assert copied.read_bytes() == path.read_bytes()


def test_there_is_one_for_every_situation() -> None:
    assert {path.stem for path in FILES} >= {
        "observe-only",
        "staging-auto",
        "production-two-person",
        "business-hours",
        "year-end-freeze",
        "break-glass",
    }


class TestInACluster:
    """What each lets through and what not, after the way through Helm and the API server."""

    def test_observing_swaps_nothing_whoever_approves(self, helm: Helm) -> None:
        decision = ask(in_cluster(helm, "observe-only"), "ada", "grace")
        assert decision.state is GateState.OBSERVE_ONLY

    def test_staging_passes_small_safe_wins_alone(self, helm: Helm) -> None:
        policy = in_cluster(helm, "staging-auto")
        assert ask(policy, env="staging").reason is GateReason.AUTOMATIC
        generated = ask(policy, env="staging", trust=TrustClass.GENERATED)
        assert generated.state is GateState.WAITING
        assert ask(policy, env="staging", risk=Risk.HIGH).state is GateState.WAITING

    def test_production_wants_two_people_of_two_groups(self, helm: Helm) -> None:
        policy = in_cluster(helm, "production-two-person")
        both = ("ada:gpu-platform", "grace:sre-oncall")
        assert ask(policy, *both).state is GateState.APPROVED
        assert ask(policy, both[0]).state is GateState.WAITING
        assert ask(policy, "ada:gpu-platform,sre-oncall").state is GateState.WAITING

    def test_business_hours_hold_a_friday(self, helm: Helm) -> None:
        policy = in_cluster(helm, "business-hours")
        assert ask(policy, "ada", now=TUESDAY).state is GateState.APPROVED
        assert ask(policy, "ada", now=FRIDAY).state is GateState.SCHEDULED

    def test_breaking_glass_takes_the_leaders_word_with_a_reason(self, helm: Helm) -> None:
        policy = in_cluster(helm, "break-glass")
        glass = DecisionKind.BREAK_GLASS
        assert ask(policy, "mary:sre-leads", kind=glass).reason is GateReason.BREAK_GLASS
        assert ask(policy, "mary:sre-leads", kind=glass, comment="").state is GateState.WAITING


def test_own_keys_take_the_place_of_the_shipped_ones_whole(helm: Helm) -> None:
    shipped = in_cluster(helm, "production-two-person")
    own = in_cluster(
        helm, "production-two-person", selector={"matchLabels": {"app": "vllm"}}, priority=7
    )
    assert own.spec.selector.match_labels == {"app": "vllm"}
    assert own.spec.priority == 7
    assert own.spec.gates == shipped.spec.gates
    assert own.spec.rollout == shipped.spec.rollout


PAGE = (CHART / "README.md").read_text("utf-8")


def example(section: str) -> str:
    """Return the YAML below a heading of the chart's page."""
    (text,) = re.findall(rf"\n## {section}\n.*?```yaml\n(.*?)```", PAGE, re.DOTALL)
    return str(text)


def policy_of_the_page(helm: Helm) -> KernelTuningPolicy:
    (entry,) = yaml.safe_load(example("Policies"))["policies"]
    return in_cluster(helm, entry["shipped"], **entry["spec"])


def test_the_examples_on_the_charts_page_fit_together(helm: Helm) -> None:
    server, body = yaml.safe_load_all(example("A server"))
    (kind,) = (kind for kind in KINDS if kind.kind == "TuningTarget")
    assert invalid(body, schema_of(kind)) == []
    target = read(TuningTarget, body)
    pod = server["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert inject(pod, settings=SidecarSettings(image="i", agent_url="https://a")).patch
    assert (container["name"], pod["metadata"]["labels"]) == (
        target.spec.container,
        target.spec.selector.match_labels,
    )
    policy = policy_of_the_page(helm)
    labels = labels_of(target)
    chosen = policy_for([policy], "rmsnorm_h512", labels=labels)
    assert chosen.policy is policy
    assert policy.spec.gates[0].when.env == (labels["env"],)


def test_a_policy_that_does_not_ship_is_told_with_those_that_do(helm: Helm) -> None:
    entry = {"name": "p", "namespace": "n", "shipped": "prodution-two-person"}
    with raises_naming(
        Refused, "policies[0].shipped", "prodution-two-person", " production-two-person"
    ):
        helm.objects({"policies": [entry]})


def test_the_example_on_the_charts_page_is_right(helm: Helm) -> None:
    page = PAGE
    (body,) = (
        each
        for each in helm.objects(yaml.safe_load(example("Policies")))
        if each["kind"] == "KernelTuningPolicy"
    )
    assert body["spec"]["selector"] == {"matchLabels": {"app": "vllm"}}
    for path in sorted((CHART / "ci").glob("*-values.yaml")):
        assert f"`{path.stem.removesuffix('-values')}`" in page
