"""Connections between the driver of a study, its workers, and workers among each other: framed, proven, never
blocking for good."""
