"""``python -m retuned_operator`` is ``retuned-operator``."""

import sys

from retuned_operator.main import main

sys.exit(main())
