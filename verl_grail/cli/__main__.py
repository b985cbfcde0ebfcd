"""``python -m verl_grail.cli``."""

import sys

from verl_grail.cli import main

sys.exit(main())
