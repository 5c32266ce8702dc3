"""The stateful operator: an unmodified `StatefulProcessor` over Arrow batches and a local store."""
