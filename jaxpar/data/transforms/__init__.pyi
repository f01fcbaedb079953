from ._image import CenterCrop as CenterCrop
from ._image import Compose as Compose
from ._image import Normalize as Normalize
from ._image import ToArray as ToArray
from ._random import RandomCrop as RandomCrop
from ._random import RandomHorizontalFlip as RandomHorizontalFlip
from ._random import RandomResizedCrop as RandomResizedCrop
from ._resize import Resize as Resize
