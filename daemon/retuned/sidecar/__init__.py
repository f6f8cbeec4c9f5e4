"""``retuned sidecar``: what samples, watches and swaps beside one server in a pod.

It decides alone about the workload, drift, harm by a swap, and rollbacks. The operator decides what
needs people or a lab. While the operator does not answer, the sidecar continues to watch, rolls
back by itself, and reports later. It needs no rights in the cluster.
"""
