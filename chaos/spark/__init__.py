"""Schedules against real Spark jobs on ``local-cluster``, with a verifier that knows no runtime."""
