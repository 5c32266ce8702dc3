"""A consumer in plain Python that counts, and goes on exactly where it was."""
