from ._compose import Compose as Compose
from ._crop import CenterCrop as CenterCrop
from ._pixels import Normalize as Normalize
from ._pixels import ToArray as ToArray
from ._random import RandomCrop as RandomCrop
from ._random import RandomHorizontalFlip as RandomHorizontalFlip
from ._random import RandomResizedCrop as RandomResizedCrop
from ._resize import Resize as Resize
