"""The blob backend: incremental by file, on any object store or filesystem."""
