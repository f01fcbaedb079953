"""padding: replicas with unequal numbers of rows as one program, where no row of padding reaches anything.

10 rows on 4 devices are 3, 3, 3 and 1. A branch for each number of rows is always right, and costs what
branches cost: each is compiled, and each keeps what its backward pass needs. Most modules need none. Their
program for 1 row is their program for 3 with other sizes, and treats every row by itself, except where it
sums over rows. There the padding is masked.

`analysis` proves that, equation by equation, from the programs for all numbers of rows that occur; `rules`
has what each primitive does to an axis of rows, `rows` what such an axis is, and `derivatives` the rules of
functions that have their own. `evaluation` runs the program for the most rows with the masks in it. What
cannot be proved is not padded.

torch has no counterpart: its replicas run their own programs.
"""

from .analysis import Plan as Plan
from .analysis import planned as planned
from .evaluation import Padded as Padded
