"""The page of a study: its view, figures, tables and words."""
