"""The Kafka backend: changelogs, job log and checkpoints in topics."""
