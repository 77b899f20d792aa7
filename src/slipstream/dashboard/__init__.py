"""Dashboard: browser pages of runs, studies and jobs, read from files alone."""
