"""The programs that Hopyard is measured against. They live in an environment of their own, never in
Hopyard's."""
