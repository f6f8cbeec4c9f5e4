"""The CRD objects: schemas with their rules, columns and names. Pure and deterministic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retuned.api.decision import SwapDecision, TuningFreeze
from retuned.api.experiment import KernelExperiment
from retuned.api.policy import PolicyObject
from retuned.api.proposal import SwapProposal
from retuned.api.target import TuningTarget
from retuned.api.values import GROUP, VERSION, ApiModel
from retuned_operator.schema.rules import RULES, Rule
from retuned_operator.schema.structural import Schema, structural

CATEGORY = "retuned"
"""``kubectl get retuned`` lists all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of ``kubectl get``."""

    name: str
    """Heading."""
    path: str
    """JSON path below the object."""
    type: str = "string"
    """``string``, ``integer``, ``number``, ``boolean`` or ``date``."""
    wide: bool = False
    """Shown with ``-o wide`` only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomResource:
    """One custom resource."""

    model: type[ApiModel]
    """Its model."""
    kind: str
    """Its name in objects."""
    plural: str
    """Its name in paths."""
    short: str
    """Its name for people in a hurry."""
    columns: tuple[Column, ...]
    """Of ``kubectl get``; the age is added."""
    namespaced: bool = True
    """Whether it lives in namespaces."""

    @property
    def full_name(self) -> str:
        """Name of the CRD."""
        return f"{self.plural}.{GROUP}"


_PHASE = Column(name="Phase", path=".status.phase")
_REASON = Column(name="Reason", path=".status.reason")
_READY = '.status.conditions[?(@.type=="Ready")].status'

KINDS: tuple[CustomResource, ...] = (
    CustomResource(
        model=TuningTarget,
        kind="TuningTarget",
        plural="tuningtargets",
        short="tt",
        columns=(
            Column(name="Mode", path=".spec.mode"),
            Column(name="Model", path=".spec.gpu.model"),
            Column(name="Pods", path=".status.pods", type="integer"),
            Column(name="Reporting", path=".status.reportingPods", type="integer"),
            Column(name="Kernels", path=".status.sampledKernels", type="integer", wide=True),
            Column(name="Last sample", path=".status.lastSample", type="date"),
        ),
    ),
    CustomResource(
        model=PolicyObject,
        kind="KernelTuningPolicy",
        plural="kerneltuningpolicies",
        short="ktp",
        columns=(
            Column(name="Mode", path=".spec.mode"),
            Column(name="Priority", path=".spec.priority", type="integer"),
            Column(name="Ready", path=_READY),
            Column(name="Open", path=".status.effectiveWindows.open", type="boolean"),
            Column(
                name="Next change",
                path=".status.effectiveWindows.nextChange",
                type="date",
                wide=True,
            ),
        ),
    ),
    CustomResource(
        model=KernelExperiment,
        kind="KernelExperiment",
        plural="kernelexperiments",
        short="kexp",
        columns=(
            Column(name="Target", path=".spec.targetRef.name"),
            Column(name="Kernel", path=".spec.kernel.name"),
            _PHASE,
            Column(name="Tried", path=".status.trials.total", type="integer"),
            Column(name="Speedup", path=".status.best.speedup.lower", type="number"),
            Column(name="Reason", path=".status.reason", wide=True),
        ),
    ),
    CustomResource(
        model=SwapProposal,
        kind="SwapProposal",
        plural="swapproposals",
        short="swp",
        columns=(
            Column(name="Target", path=".spec.targetRef.name"),
            Column(name="Kernel", path=".spec.kernel"),
            _PHASE,
            Column(name="Speedup", path=".spec.speedup.lower", type="number"),
            Column(name="Risk", path=".spec.risk.level"),
            Column(name="Missing", path=".status.gate.missing", type="integer"),
            Column(name="Expires", path=".spec.expiresAt"),
            Column(name="Digest", path=".spec.artifact.digest", wide=True),
            Column(name="Reason", path=".status.reason", wide=True),
        ),
    ),
    CustomResource(
        model=SwapDecision,
        kind="SwapDecision",
        plural="swapdecisions",
        short="swd",
        columns=(
            Column(name="Proposal", path=".spec.proposalRef.name"),
            Column(name="Decision", path=".spec.decision"),
            Column(name="User", path=".spec.user"),
            Column(name="Comment", path=".spec.comment", wide=True),
        ),
    ),
    CustomResource(
        model=TuningFreeze,
        kind="TuningFreeze",
        plural="tuningfreezes",
        short="ktf",
        namespaced=False,
        columns=(
            Column(name="Stop", path=".spec.stopPolicy"),
            Column(name="Until", path=".spec.until"),
            Column(name="User", path=".spec.user"),
            Column(name="Reason", path=".spec.reason"),
        ),
    ),
)
"""Every kind, in the order in which a reader meets them."""


def definition_of(kind: CustomResource) -> dict[str, Any]:
    """Return the CustomResourceDefinition of one kind."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": kind.full_name},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
                "plural": kind.plural,
                "singular": kind.kind.lower(),
                "shortNames": [kind.short],
                "categories": [CATEGORY],
            },
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": _columns(kind.columns),
                    "schema": {"openAPIV3Schema": schema_of(kind)},
                    "subresources": {"status": {}},
                }
            ],
        },
    }


def schema_of(kind: CustomResource) -> Schema:
    """Return the schema of one kind, rules included."""
    schema = structural(kind.model)
    properties = schema["properties"]
    properties["apiVersion"] = {
        "type": "string",
        "description": "Group and version of the schema of this object.",
    }
    properties["kind"] = {"type": "string", "description": "What this object is."}
    properties["metadata"] = {"type": "object"}
    # An object that was just made has no status; a default would only be noise in a diff.
    properties["status"].pop("default", None)
    schema["required"] = ["spec"]
    for path, rules in RULES[kind.kind].items():
        _at(schema, path)["x-kubernetes-validations"] = [_written(rule) for rule in rules]
    return schema


def _at(schema: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return the schema of a field by its dotted path; ``[]`` goes into a list."""
    node: Any = schema
    for part in path.split("."):
        node = node["properties"][part.removesuffix("[]")]
        node = node["items"] if part.endswith("[]") else node
    found: dict[str, Any] = node
    return found


def _written(rule: Rule) -> dict[str, Any]:
    return {"rule": rule.expression, "message": rule.message}


def _columns(columns: Sequence[Column]) -> list[dict[str, Any]]:
    age = Column(name="Age", path=".metadata.creationTimestamp", type="date")
    found = []
    for column in (*columns, age):
        body: dict[str, Any] = {
            "name": column.name,
            "type": column.type,
            "jsonPath": column.path,
        }
        if column.wide:
            body["priority"] = 1
        found.append(body)
    return found
