"""What a daemon on one machine and a sidecar in a pod do alike: from traces to drift, and watching.

`windows` are the steps, `counts` what slots counted beside the traces, `seen` what was seen of an
order in force, `context` what they need, `numbers` how that follows from settings, `steps` how one
is done. Written against ports; who connects them is a program.
"""
