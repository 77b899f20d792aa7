"""The page of a run on prices: account, baselines, costs, tables, figures and words."""
