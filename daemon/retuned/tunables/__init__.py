"""Experiments on tunables: spaces, search, and a child process in the server's environment."""
