"""A small controller runtime over the official client's connections.

``client`` reads and writes, ``reflector`` keeps copies of what is watched in a ``store``, ``queue``
says what is to be looked at next, ``lease`` who may act, ``manager`` runs it all: whenever
something about an object may have changed, ``reconcile(key)`` looks at the whole of it.
"""
