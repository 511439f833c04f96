"""The replica program beside the user's code: prepares, launches, ships streams, enforces limits, and reports
the exit (design page 0001, section 4)."""
