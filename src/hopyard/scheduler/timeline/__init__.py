"""The future in layers: what ends when, what is promised, what is reserved, and what may be placed without
being in the way."""
