"""padding: replicas with unequal numbers of rows as one program, in which no row of padding has any effect.

10 rows on 4 devices are 3, 3, 3 and 1. A branch for each number of rows is always right, but expensive. The
program of most modules for 1 row is their program for 3 with other sizes, and treats every row by itself,
except where it sums over rows. There the padding is masked. `analysis` proves that, equation by equation; a
module for which the proof fails is not padded.
"""

from .analysis import Plan as Plan
from .analysis import planned as planned
from .evaluation import Padded as Padded
