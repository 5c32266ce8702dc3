"""The guard level: a query on Spark's own state store, copied while it runs, with kills of both sides."""
