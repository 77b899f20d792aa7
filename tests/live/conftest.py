"""The markets beside these tests are importable."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from live_markets import blocks as blocks
from live_markets import make as make
