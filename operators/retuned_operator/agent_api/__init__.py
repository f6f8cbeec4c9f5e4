"""The agent API: what sidecars say, and what they are told. HTTPS, and nothing but their own pod.

``identity`` decides who speaks, ``authentication`` asks the API server, ``bodies`` reads strictly,
``limits`` holds back, ``waiting`` wakes who waits for orders, ``desired`` is what a pod is to have,
``artifacts`` how code is handed out, ``reports`` what was said last, ``app`` ties them together and
``serving`` is the server with its certificates. What it needs of the cluster is in ``ports``.
"""

from retuned.control.orders import desired_orders
from retuned_operator.agent_api.app import AgentSettings, agent_app
from retuned_operator.agent_api.authentication import Caller, TokenReviews
from retuned_operator.agent_api.ports import Inbox, PodDirectory, PodRecord, Receipt, Said, Tokens
from retuned_operator.agent_api.reports import Reports, pod_fact
from retuned_operator.agent_api.server import AgentServer
from retuned_operator.agent_api.waiters import Hub

__all__ = [
    "AgentServer",
    "AgentSettings",
    "Caller",
    "Hub",
    "Inbox",
    "PodDirectory",
    "PodRecord",
    "Receipt",
    "Reports",
    "Said",
    "TokenReviews",
    "Tokens",
    "agent_app",
    "desired_orders",
    "pod_fact",
]
