"""Lets the tests import the scripts, which are not part of the package."""

import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path[:0] = [str(SCRIPTS / "claims"), str(SCRIPTS / "demo")]
