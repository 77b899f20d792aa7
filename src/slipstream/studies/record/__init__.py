"""What a study keeps: its folder, its ledger, Optuna's storage, exports."""
