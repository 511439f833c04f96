"""Persistent state in SQL: one implementation for SQLite (one server) and PostgreSQL (several servers).

`database` owns the connections and the group commit, `tables` the schema. Each store has its own file.
"""
