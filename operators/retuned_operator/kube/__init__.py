"""A small controller runtime over the official client's connections.

``client`` reads and writes, ``informer`` caches watched objects, ``queue`` has the next keys,
``lease`` elects the leader, and ``manager`` runs all of it: after any change that may concern an
object it calls ``reconcile(key)``, which reads the whole object.
"""
