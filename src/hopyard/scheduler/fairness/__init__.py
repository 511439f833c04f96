"""Who may use how much, and who comes first."""
