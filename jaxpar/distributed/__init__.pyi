from ._group import get_rank as get_rank
from ._group import get_world_size as get_world_size
from ._group import is_initialized as is_initialized
from ._process_group import destroy_process_group as destroy_process_group
from ._process_group import init_process_group as init_process_group
