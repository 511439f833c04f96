"""Engines run gangs. Each engine is a separate room and passes `hopyard.testing.engine_contract`."""
