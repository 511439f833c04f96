"""Where gangs run. Each engine is a room of its own and passes `hopyard.testing.engine_contract`."""
