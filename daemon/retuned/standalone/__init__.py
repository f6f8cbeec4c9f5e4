"""The loop on one machine: the ten stages over SQLite and child processes.

Every step is level-triggered: it reads the store, decides through a stage, acts through a port, and
writes what happened. Killing the process between any two writes and starting it again converges.
"""
