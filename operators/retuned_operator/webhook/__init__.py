"""The mutating webhook that puts the sidecar into pods which ask for it.

``review`` makes the answer (pure), ``app`` serves it, ``server`` is HTTPS whose certificate may
change while it runs. ``certificates`` makes our own authority and certificates (pure but for
randomness). ``certificate_secret`` stores them in a Secret and publishes the authority.
"""
