"""The folder that ``PYTHONPATH`` names; nothing but `sitecustomize` is to be found in it."""
