"""Kit for a GPU that is available for half an hour: its packages and its steps. See README.md."""
