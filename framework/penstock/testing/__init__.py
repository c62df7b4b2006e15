"""Testing: a driver for users' services without a broker; simulated surroundings for our own."""

from penstock.testing.driver import Checkpoint, Driver
from penstock.testing.driver_subtask import Output

__all__ = ["Checkpoint", "Driver", "Output"]
