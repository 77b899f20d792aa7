"""What a study keeps: its folder, its ledger, Optuna's storage; what its status and exports say."""
