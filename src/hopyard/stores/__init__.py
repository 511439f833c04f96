"""Where bytes and records are kept: `sql` holds the records, `blobs` and `streams` the bytes."""
