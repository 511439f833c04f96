"""Pure: a Snapshot goes in, a Plan comes out. Which gang starts where, and why the others wait."""
