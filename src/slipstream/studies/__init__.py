"""Studies: hyperparameter search with folds and statistics. Only this package imports Optuna."""
