"""Experiment runs outside the daemon: in a child process or a pod, with transport of results."""
