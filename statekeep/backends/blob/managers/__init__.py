"""Clients of object stores and filesystems: one `BlobStoreManager` each."""
