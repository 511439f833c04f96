"""The heart: a snapshot goes in, a plan comes out."""

from hopyard.scheduler.cycle.planner import Planner, plan

__all__ = ["Planner", "plan"]
