from . import init as init
from ._generator import Generator as Generator
from ._order import distributed_order as distributed_order
from ._order import loader_order as loader_order
from ._order import sampler_order as sampler_order
from ._torch_init import torch_init as torch_init
