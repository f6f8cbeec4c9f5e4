"""``python -m retuned_operator`` is ``retuned-operator``."""

import sys

from retuned_operator.program.main import main

sys.exit(main())
