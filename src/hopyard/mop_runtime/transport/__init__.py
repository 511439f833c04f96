"""Connections between the driver of a study and its workers, and among workers: framed, authenticated, and
never blocking for ever."""
