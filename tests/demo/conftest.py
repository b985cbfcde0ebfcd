"""Lets the tests import the demo's modules, which are scripts and not part of the package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "demo"))
