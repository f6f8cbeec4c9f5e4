"""Tunables of a server on one machine: observation, experiments, and the files of a win."""
