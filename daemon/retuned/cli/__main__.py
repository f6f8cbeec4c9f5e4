"""``python -m retuned.cli``: the same as the ``retuned`` command."""

from retuned.cli import main

main()
