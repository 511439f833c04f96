"""The entry point of Alembic: migrates inside the transaction of the connection that `schema.migrate`
passes."""

from __future__ import annotations

from alembic import context

from hopyard.stores.sql.tables import metadata

context.configure(
    connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True
)
context.run_migrations()
