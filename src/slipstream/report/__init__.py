"""Pages that people read: statistics, baselines, figures and the HTML report of a run."""
