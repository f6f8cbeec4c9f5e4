"""Kernels that a server configures by a tuned-config file: pure decisions, from launch to change.

`launches` says which definition a server's own launch is of, `rows` what a row of a file is in the
lab and back, `choosing` which step of a file is worth an experiment, `changing` what a won row
makes of the file. The runtime's `tuned` package writes; nothing here touches a file or a server.
"""
