"""Pages that people read: one builder and what all share here, a room for each kind of page."""
