"""The loops that carry out what the pure rooms decide, with all their effects."""
