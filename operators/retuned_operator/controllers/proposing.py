"""The SwapProposal of an experiment's win, as an object."""

from __future__ import annotations

from typing import Any

from retuned.stages.proposal import Proposal
from retuned_operator.controllers import turns
from retuned_operator.controllers.acting import ClusterWriter
from retuned_operator.crds import KernelExperiment, TuningTarget, proposal_spec, write
from retuned_operator.crds.values import API_VERSION
from retuned_operator.manifests import proposal_name
from retuned_operator.manifests.names import labels, owner
from retuned_operator.runtime.resources import PROPOSALS, TARGETS


def propose(
    acting: ClusterWriter, resource: KernelExperiment, *, proposal: Proposal, target: TuningTarget
) -> str:
    """Write the proposal of a win; return its name, which follows from what it is about."""
    spec = proposal_spec(
        proposal,
        target=target.metadata.name,
        gpu_model=resource.spec.gpu_model,
        experiment=resource.metadata.name,
    )
    name = proposal_name(proposal.id, target_uid=target.metadata.uid)
    about = {"experiment": resource.metadata.name, "kernel": spec.kernel, "name": name}
    with acting.spans.span("proposal", after=turns.last_span(resource), about=about):
        acting.make(PROPOSALS, proposal_body(name, write(spec), target=target))
    return name


def proposal_body(name: str, spec: dict[str, Any], *, target: TuningTarget) -> dict[str, Any]:
    """Return a SwapProposal that goes with its target."""
    return {
        "apiVersion": API_VERSION,
        "kind": PROPOSALS.kind,
        "metadata": {
            "name": name,
            "namespace": target.metadata.namespace,
            "labels": labels("experiment"),
            "ownerReferences": [
                owner(TARGETS.kind, name=target.metadata.name, uid=target.metadata.uid)
            ],
        },
        "spec": spec,
    }
