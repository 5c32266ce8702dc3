"""A job's history as one HTML page that needs nothing else."""
