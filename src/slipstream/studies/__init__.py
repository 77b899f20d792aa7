"""Studies: a search over configs, its folds, its statistics; Optuna is imported only here."""
