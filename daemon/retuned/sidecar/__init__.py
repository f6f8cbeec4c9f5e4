"""``retuned sidecar``: what samples, watches and swaps beside one server in a pod.

It decides what needs nobody else: what the workload is, whether it drifted, whether a swap does
harm, and the way back. What needs people or a lab is the operator's. With the operator away it
keeps watching, goes back by itself, and tells later. It needs no right in the cluster.
"""
