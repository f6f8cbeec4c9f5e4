"""References from files: checked text, run in a process that has given up everything else.

Nothing here imports what the child cannot have: `check` and `words` are standard library only.
"""
