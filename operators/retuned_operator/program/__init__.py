"""``retuned-operator``: settings, store, controllers, agent API, webhook, health; one leader.

The only part of the operator that knows adapters: it plugs them into the ports of the others.
"""

from retuned_operator.main import main

__all__ = ["main"]
