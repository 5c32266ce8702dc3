"""Checkpoints, their form on disk, and the job log that decides which of them counts."""
