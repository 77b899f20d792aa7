"""One kernel's copies: records stepped by one compiled loop."""
