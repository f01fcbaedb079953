"""memory_report: what a training step keeps on each device, torch's way and this one.

torch's DataParallel gathers all outputs on the first device and computes the loss there, and the
master parameters and the optimizer's state live there too, so that device is full while the others
have room. `measure` finds the bytes, `report` holds and prints them, `chart` draws them.
"""

from .figures import DeviceBytes as DeviceBytes
from .measure import memory_report as memory_report
from .report import MemoryReport as MemoryReport
