"""The capped executor, the commit pipeline, its gate, and clean-up."""
