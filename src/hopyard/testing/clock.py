"""The clock of the simulator, for tests of loops."""

from hopyard.simulator.clock import START_TIME, ManualClock

__all__ = ["START_TIME", "ManualClock"]
