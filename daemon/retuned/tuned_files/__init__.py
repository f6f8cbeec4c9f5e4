"""Tuned-config files of servers: pure decisions, from launch to change.

`launches` maps a server's launch to a definition, and rows to variants and back. `changes` chooses
the step of a file worth an experiment and renders the change of a won row. `formats` parses and
renders rows. The runtime's `tuned_files` package writes; this package accesses no file and no
server.
"""
