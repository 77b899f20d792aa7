"""Pages that people read: one builder, the page of a run and of a study, the model card."""
