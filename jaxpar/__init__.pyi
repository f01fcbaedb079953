# All public names, grouped by subject. Imports only: lazy_loader reads this file.

# Modules
from . import distributed as distributed
from . import distributions as distributions
from . import errors as errors
from . import comm_hooks as comm_hooks
from . import data as data
from . import nn as nn
from . import optim as optim
from . import random as random
from . import parity as parity

# Devices
from ._devices.devices import devices as devices
from ._devices.devices import device as device
from ._devices.devices import device_count as device_count
from ._devices.devices import is_available as is_available
from ._devices.current import current_device as current_device
from ._devices.current import set_device as set_device
from ._devices.current import synchronize as synchronize
from ._devices.current import get_device_name as get_device_name
from ._devices.current import get_device_properties as get_device_properties
from ._devices.current import DeviceProperties as DeviceProperties
from ._devices.current import memory_stats as memory_stats
from ._devices.move import to as to
from ._devices.move import cuda as cuda
from ._devices.move import cpu as cpu
from ._devices.move import device_of as device_of
from ._devices.virtual import virtual_devices as virtual_devices
from ._devices.topology import topology as topology
from ._devices.topology import Topology as Topology

# Data parallelism
from ._parallel.data_parallel import DataParallel as DataParallel
from ._parallel.data_parallel import data_parallel as data_parallel
from ._parallel.scatter import scatter as scatter
from ._parallel.scatter import scatter_kwargs as scatter_kwargs
from ._parallel.shards import Shards as Shards
from ._parallel.replicate import replicate as replicate
from ._parallel.replicate import Replicas as Replicas
from ._parallel.replicated import replicated as replicated
from ._parallel.parallel_apply import parallel_apply as parallel_apply
from ._parallel.gather import gather as gather
from ._parallel.on_device import each_device as each_device
from ._parallel.placement import Placement as Placement
from ._parallel.on_device import OnDevice as OnDevice
from .nn import convert_sync_batchnorm as convert_sync_batchnorm
from ._parallel.programs import clear_caches as clear_caches

# Training
from ._training.train_step import train_step as train_step
from ._training.train_step import TrainStep as TrainStep
from ._training.pure_step import StepCarry as StepCarry
from ._training.function_state import FunctionState as FunctionState
from ._training.on_update import StepUpdate as StepUpdate
from ._training.eval_step import eval_step as eval_step
from ._training.precision import Precision as Precision
from ._training.distributed_data_parallel import DistributedDataParallel as DistributedDataParallel
from .distributed.check_replicas import check_replicas as check_replicas
from ._checkpointer.checkpointer import Checkpointer as Checkpointer
from ._checkpointer.reading import Restored as Restored
from ._checkpointer.unwrapped import load_unwrapped_state as load_unwrapped_state
from ._checkpointer.unwrapped import unwrapped_state as unwrapped_state
from ._metrics.log import MetricsLog as MetricsLog
from ._metrics.progress import progress as progress
from ._training.watchdog import beat as beat

# Tools
from ._tools.estimate.estimate import estimate as estimate
from ._tools.estimate.report import Estimate as Estimate
from ._tools.estimate.hardware import Hardware as Hardware
from ._tools.estimate.memory_report import memory_report as memory_report
from ._tools.estimate.memory import MemoryReport as MemoryReport
from ._tools.program.program import program as program
from ._tools.program.report import ProgramReport as ProgramReport
from ._tools.program.report import Finding as Finding
from ._tools.profile import profile as profile
from ._tools.profile import Profile as Profile
from ._tools.profile import Operation as Operation
from ._version import __version__ as __version__
