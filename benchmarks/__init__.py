"""Measurements beside Spark's own operators, and of the parts: ``python -m benchmarks``."""
