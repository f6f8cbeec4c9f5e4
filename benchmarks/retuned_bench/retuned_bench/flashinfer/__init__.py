"""FlashInfer-Bench JSON: definitions, workloads, solutions and traces in, and out again.

Their schema is mirrored here, not imported. A field that it lacks goes where its strict reader
keeps or ignores it: a tag of a definition, a file of a solution, a library of a trace's
environment. A record that their schema cannot hold is refused with a reason. Nothing that is read
is ever executed.
"""
