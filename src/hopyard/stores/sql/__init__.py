"""The truth in SQL: one code for SQLite (one server) and PostgreSQL (several).

`database` owns the connections and the group commit, `tables` the schema, and each store of a noun has its
own file.
"""
