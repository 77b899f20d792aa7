"""Dashboard: pages in a browser of what runs and ran, from files alone."""
