"""The agent API: sidecars send reports over HTTPS and get the orders for their pod.

``authentication`` finds the pod of a token by asking the API server. ``requests`` reads bodies,
limits the rate of requests and renders errors. ``waiters`` wakes requests that wait for orders.
``artifacts`` sends signed code. ``reports`` keeps the last reports of each pod. ``app`` contains
the handlers, ``server`` the HTTPS server with its certificates, ``ports`` the interfaces to the
cluster.
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
