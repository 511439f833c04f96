"""Where the platform keeps what must survive: SQL for records, folders or object stores for bytes.

Each store is one implementation of a Protocol of `hopyard.interfaces` and passes the suite of
`hopyard.testing` for it.
"""
