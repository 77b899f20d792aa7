"""Markets that the tests of paper trading share."""

from live_markets import blocks as blocks
from live_markets import make as make
