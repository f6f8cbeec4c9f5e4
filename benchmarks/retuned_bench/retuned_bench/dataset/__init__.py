"""Data sets of experiments: what was tried, and with which result, ready for training.

``records`` describes rows, ``rows`` makes them by ``rules``, ``sources`` and ``text``. These are
pure: no files, clock, network or device. ``trials`` reads a `Store`, ``folder`` writes files,
``export`` does the work of the command in ``commands``.
"""
