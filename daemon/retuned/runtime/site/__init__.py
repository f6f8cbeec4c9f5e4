"""Site folder for ``PYTHONPATH``; it contains only `sitecustomize`."""
