"""The future in layers: what ends when, what is promised, what is reserved, and what may be placed without being in the way."""

from hopyard.scheduler.timeline.future import End, Future
from hopyard.scheduler.timeline.grant import Granted, Refused, grant
from hopyard.scheduler.timeline.leave import Leave, leave
from hopyard.scheduler.timeline.timeline import Blocked, Timeline

__all__ = ["Blocked", "End", "Future", "Granted", "Leave", "Refused", "Timeline", "grant", "leave"]
