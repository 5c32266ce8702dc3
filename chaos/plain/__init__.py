"""Schedules against the plain-Python container, fast: job processes forked from one server."""
