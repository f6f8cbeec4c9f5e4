"""The review page in a cluster: it reads from caches, with each person's own rights.

A proxy logs people in and names them. The page asks the API server what a person may see. It writes
decisions in the person's name, by impersonation, so that the API server checks the person's rights
and the audit log names the person. The operator's own account decides for no person.
"""
