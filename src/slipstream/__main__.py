"""`python -m slipstream`, the same as `slipstream`."""

from slipstream.cli import main

main()
