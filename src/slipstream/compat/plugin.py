"""What older systems add to slipstream: their config files; see `core/plugins.py`."""

formats = ("slipstream.compat.hockey_project.config", "slipstream.compat.intraday.config")
