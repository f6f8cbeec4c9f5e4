"""Objects as an API server would hand them out, for the tests of the operator."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from retuned.contract import Guard, TrustClass, Workload
from retuned.stages.experiment import ExperimentPlan, plan
from retuned.stages.hypothesis import Hypothesis
from retuned.stages.proposal import Proposal, Risk, proposal_id
from retuned.stages.verdict import Interval
from retuned_operator.schema import PolicyRef, experiment_spec, proposal_spec
from retuned_operator.schema.objects import write

NOW = datetime(2026, 3, 2, 10, 0, tzinfo=UTC)
"""A Monday."""
ARTIFACT = "sha256:" + "a" * 64
BASELINE = "sha256:" + "b" * 64
EVIDENCE = "sha256:" + "e" * 64
WORLD = "sha256:" + "f" * 64
POLICY = "sha256:" + "c" * 64
BELIEF = "sha256:" + "d" * 64


def metadata(
    name: str, *, namespace: str = "serving", uid: str = "", **more: Any
) -> dict[str, Any]:
    body = {
        "name": name,
        "uid": uid or f"uid-{name}",
        "generation": 1,
        "resourceVersion": "7",
        "creationTimestamp": NOW.isoformat().replace("+00:00", "Z"),
        "managedFields": [{"manager": "kubectl", "operation": "Apply"}],
        **more,
    }
    return body | ({"namespace": namespace} if namespace else {})


def a_plan(**changes: Any) -> ExperimentPlan:
    belief = Hypothesis(
        id=BELIEF,
        definition="rmsnorm_h512",
        workloads=(
            Workload(definition="rmsnorm_h512", axes={"M": 1}, weight=100.0),
            Workload(definition="rmsnorm_h512", axes={"M": 1024}, weight=2.5),
        ),
        share=0.2,
        expected_gain_ratio=1.5,
        expected_saving=0.06,
        because="new shapes",
    )
    return plan(belief, incumbent=BASELINE, environment=WORLD, **changes)


def a_proposal(**changes: Any) -> Proposal:
    target, attempt = changes.pop("target", "serving/chat"), changes.pop("attempt", 1)
    artifact = changes.pop("artifact", ARTIFACT)
    body: dict[str, Any] = {
        "id": proposal_id(
            target=target, artifact=artifact, baseline=BASELINE, environment=WORLD, attempt=attempt
        ),
        "target": target,
        "definition": "rmsnorm_h512",
        "artifact": artifact,
        "baseline": BASELINE,
        "guard": Guard(bounds={"M": (1, 64)}),
        "speedup": Interval(lower=1.2, point=1.25, upper=1.3, confidence=0.995),
        "share": 0.2,
        "expected_saving": 0.03,
        "risk": Risk.LOW,
        "risk_reasons": (),
        "trust": TrustClass.PARAMETERS,
        "evidence": EVIDENCE,
        "experiment": a_plan().id,
        "requested_by": "retuned",
        "created_at": NOW,
        "expires_at": NOW + timedelta(days=3),
        "environment": WORLD,
        "attempt": attempt,
    }
    return Proposal.model_validate(body | changes)


def an_object(kind: str, name: str, spec: Any, **more: Any) -> dict[str, Any]:
    """Return an object with a spec, which is a model or JSON data."""
    return {
        "apiVersion": "retuned.dev/v1alpha1",
        "kind": kind,
        "metadata": metadata(name, **more),
        "spec": write(spec) if hasattr(spec, "model_dump") else spec,
    }


def a_target(**status: Any) -> dict[str, Any]:
    body = an_object(
        "TuningTarget",
        "chat",
        {
            "selector": {"matchLabels": {"app": "chat"}},
            "container": "server",
            "framework": "vllm",
            "gpu": {"vendor": "amd", "model": "MI300X"},
            "mode": "Swap",
        },
        labels={"env": "prod"},
    )
    return body | ({"status": status} if status else {})


def an_experiment(**changes: Any) -> dict[str, Any]:
    spec = experiment_spec(
        a_plan(),
        target="chat",
        gpu_model="MI300X",
        policy=PolicyRef(name="prod", generation=1, digest=POLICY),
    )
    body = an_object("KernelExperiment", "exp-1", spec)
    body["spec"] |= changes
    return body


def a_swap(**changes: Any) -> dict[str, Any]:
    spec = proposal_spec(a_proposal(), target="chat", gpu_model="MI300X", experiment="exp-1")
    body = an_object("SwapProposal", "swp-1", spec)
    body["spec"] |= changes
    return body


def a_decision(**changes: Any) -> dict[str, Any]:
    spec = {
        "proposalRef": {"name": "swp-1", "uid": "uid-swp-1"},
        "digest": ARTIFACT,
        "decision": "Approve",
        "user": "ada",
        "groups": ["gpu-platform"],
        "comment": "looks right",
        "policyGeneration": 1,
        "policyDigest": POLICY,
    }
    return an_object("SwapDecision", "swd-1", spec | changes)


def a_freeze(**changes: Any) -> dict[str, Any]:
    spec = {"stopPolicy": "Hold", "user": "ada", "reason": "launch day"}
    return an_object("TuningFreeze", "stop", spec | changes, namespace="")
