# The table of contents, in the order in which data meets the names. Imports only.
from . import errors as errors
from . import nn as nn
from ._data_parallel import DataParallel as DataParallel
from ._data_parallel import data_parallel as data_parallel
from ._devices import device as device
from ._devices import device_count as device_count
from ._devices import devices as devices
from ._devices import is_available as is_available
from ._gather import gather as gather
from ._parallel_apply import parallel_apply as parallel_apply
from ._placement import Placement as Placement
from ._replicate import Replicas as Replicas
from ._replicate import replicate as replicate
from ._scatter import scatter as scatter
from ._scatter import scatter_kwargs as scatter_kwargs
from ._shards import Shards as Shards
from ._virtual import virtual_devices as virtual_devices
