"""Reports: page builder, pages of runs and studies, and the model card."""
