"""What is kept in files, whole or not at all: states, tables, status, provenance."""
