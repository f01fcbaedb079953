"""Measure how far two sides' arrays are apart, and judge which differences are meaningful.

    arrays by name ─► measure ─► Difference ─► judge ─► Judged
                      noise, noise_elements ────┘

`measure` only measures; `judge` compares its numbers with the bounds of a `Policy`. Arrays may be anything
that NumPy accepts; neither JAX nor torch is imported.
"""

from ._distance import unit_roundoff as unit_roundoff
from ._judge import Judged as Judged
from ._judge import Key as Key
from ._judge import Level as Level
from ._judge import Outcome as Outcome
from ._judge import Policy as Policy
from ._judge import judge as judge
from ._judge import key_of as key_of
from ._judge import kinks as kinks
from ._judge import noise as noise
from ._judge import noise_elements as noise_elements
from ._measure import Difference as Difference
from ._measure import Kind as Kind
from ._measure import Number as Number
from ._measure import measure as measure
