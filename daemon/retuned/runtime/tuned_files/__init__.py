"""Tuned-config files: tables of launch parameters that servers read, changed row by row.

Pure where it can be: `moe_json`, `csv_table` and `tunable_op` read and write, `nearest` and
`padding` say what has to be written so that only the guarded batch sizes change, `changes` puts
both together. `files` is the only place that writes, `servers` the only one that asks a server.
"""
