"""Tuned-config files: tables of launch parameters that servers read, changed row by row.

Most modules are pure: `moe_json` and `table_formats` read and write, `rules` computes what must be
written so that only the guarded batch sizes change, `changes` combines both. Only `files` writes,
and only `servers` calls a server.
"""
