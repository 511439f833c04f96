"""Who may use how much, and who comes first."""

from hopyard.scheduler.fairness.accounts import Accounts, Refusal

__all__ = ["Accounts", "Refusal"]
