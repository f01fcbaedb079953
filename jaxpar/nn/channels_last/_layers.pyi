# The layers of images are subclasses with the same arguments.
from ..channels_first import *  # noqa: F403
