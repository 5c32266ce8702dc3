"""State backends: contracts, registry, wrappers, and our own implementations."""
