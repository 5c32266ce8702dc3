"""Queries that keep their state in Spark's own state stores, looked after from outside."""
