"""The review page in a cluster: caches to look at, people's own rights to look and to speak.

Whoever comes is named by a proxy that has logged them in. What they may see the API server is
asked; what they say is written in their name, by impersonation, so that the API server decides
whether they may, and its log says who it was. The operator's own account says nothing for anybody.
"""
