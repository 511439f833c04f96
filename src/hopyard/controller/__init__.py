"""The loops that carry out the decisions of the pure rooms. All effects are here."""
