"""Records of a study: folder, ledger, Optuna storage, status and exports."""
