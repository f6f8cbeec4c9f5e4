"""Records to Kubernetes objects. Pure: nothing here reads a clock, a file or a cluster.

``jobs`` are the pods of experiments, ``server_container`` what a tunable's has beside, ``sandbox``
their walls, ``cluster`` what keeps them away from production, ``injection`` the sidecar in server
pods, ``admission`` who may decide, ``roles`` who may do what; ``names`` makes names and labels,
``settings`` are what an administrator chooses.
"""

from retuned_operator.manifests.admission import decision_policy, freeze_policy
from retuned_operator.manifests.cluster import (
    experiment_namespace,
    limit_range,
    network_policies,
    priority_class,
    quota,
)
from retuned_operator.manifests.injection import Injection, NotInjected, inject
from retuned_operator.manifests.jobs import JobRequest, job_objects
from retuned_operator.manifests.names import child_name, experiment_name, proposal_name
from retuned_operator.manifests.roles import operator_roles, people_roles
from retuned_operator.manifests.server_container import ServerImage
from retuned_operator.manifests.settings import Endpoint, JobSettings, SidecarSettings, Size

__all__ = [
    "Endpoint",
    "Injection",
    "JobRequest",
    "JobSettings",
    "NotInjected",
    "ServerImage",
    "SidecarSettings",
    "Size",
    "child_name",
    "decision_policy",
    "experiment_name",
    "experiment_namespace",
    "freeze_policy",
    "inject",
    "job_objects",
    "limit_range",
    "network_policies",
    "operator_roles",
    "people_roles",
    "priority_class",
    "proposal_name",
    "quota",
]
