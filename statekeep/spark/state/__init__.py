"""Committed state as rows: which there are, where they lie, and what they look like."""
