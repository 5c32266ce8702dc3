"""Which backend restores which store, fallback, verification, progress."""
