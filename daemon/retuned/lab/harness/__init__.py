"""Runs candidates in children, with the shared memory and the checks of the parent."""
