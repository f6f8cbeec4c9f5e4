"""The mutating webhook that puts the sidecar into pods which ask for it.

``review`` is the answer (pure), ``app`` its door, ``serving`` HTTPS whose certificate may change
while it runs; ``certificates`` makes our own authority and certificates (pure but for randomness),
``keeping`` keeps them in a Secret and tells the cluster whom to believe.
"""
