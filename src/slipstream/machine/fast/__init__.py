"""Only shortens the first start: without this package's short cuts, compiling takes longer."""
