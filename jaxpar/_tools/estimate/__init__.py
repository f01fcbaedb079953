"""`estimate` and `memory_report`: a training step's memory and time, read from its compiled program."""

from .estimate import estimate as estimate
from .hardware import Hardware as Hardware
from .memory import MemoryReport as MemoryReport
from .memory_report import memory_report as memory_report
from .report import Estimate as Estimate
