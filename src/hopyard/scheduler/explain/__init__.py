"""Why a run waits, and what would start it sooner."""
