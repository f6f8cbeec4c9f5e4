"""References from files: checked text that runs in a confined process.

This package imports only modules that the child can have: `check` and `words` are standard library
only.
"""
