"""Pure: takes a Snapshot and returns a Plan, which decides the gangs that start, and why the others wait."""
