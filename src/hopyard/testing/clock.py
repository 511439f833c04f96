"""The clock of the simulator, for tests of loops."""

from hopyard.simulator.clock import START, ManualClock

__all__ = ["START", "ManualClock"]
