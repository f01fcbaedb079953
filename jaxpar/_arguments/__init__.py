"""Checks of arguments, with one text for each kind of mistake.

`checked` compares the arguments of every public function and class with their annotations, `kinds` defines
what an annotation accepts, `values` checks numbers and paths by hand, and `warn` points to the caller's line.
"""

from .checked import check_class as check_class
from .checked import check_on_import as check_on_import
from .checked import name_call as name_call
from .kinds import EXPLAINED as EXPLAINED
from .kinds import FINITE as FINITE
from .kinds import FLOATING as FLOATING
from .kinds import INFINITE as INFINITE
from .kinds import AnyFloat as AnyFloat
from .kinds import Count as Count
from .kinds import Extended as Extended
from .kinds import Least as Least
from .kinds import Limit as Limit
from .kinds import NonNegative as NonNegative
from .kinds import Positive as Positive
from .kinds import Size as Size
from .values import whole as whole
from .warn import warn as warn
