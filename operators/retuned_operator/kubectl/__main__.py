"""``python -m retuned_operator.kubectl``: the same as ``kubectl retuned``."""

from retuned_operator.kubectl import main

main()
