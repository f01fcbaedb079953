from ._compose import Compose as Compose
from ._crop import CenterCrop as CenterCrop
from ._crop import RandomCrop as RandomCrop
from ._flip import RandomHorizontalFlip as RandomHorizontalFlip
from ._normalize import Normalize as Normalize
from ._resize import Resize as Resize
from ._resized_crop import RandomResizedCrop as RandomResizedCrop
from ._to_array import ToArray as ToArray
