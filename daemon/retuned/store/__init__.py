"""SQLite, blobs, keys, approvals and policy files."""
