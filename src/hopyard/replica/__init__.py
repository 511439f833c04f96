"""The small program beside the user's code: prepares, launches, tails, ships, limits, and reports the exit
(design page 0001, section 4)."""
