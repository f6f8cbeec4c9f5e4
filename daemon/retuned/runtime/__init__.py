"""Loaded inside the server: slots, launches, shadow checks, control socket. Standard library only."""
