"""Plugin that reads config files of older systems; see `core/plugins.py`."""

formats = ("slipstream.compat.hockey_project.config", "slipstream.compat.intraday.config")
