"""Tests of a folder are imported by path; this one lets them share `machines`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
