"""Persistent storage of the platform: SQL for records, folders or object stores for bytes.

Each store implements a Protocol of `hopyard.interfaces` and passes its conformance suite in
`hopyard.testing`.
"""
