"""Trees of files by content: packing, transfer, and the cache of read-only trees on a node."""
