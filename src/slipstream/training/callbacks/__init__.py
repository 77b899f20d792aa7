"""Who is told what happens in a run: events, console, curves, tables. Nothing depends on them."""
