"""Weights: pairing a torch model with a Flax model, and moving arrays between them.

`tree` (Flax) and `source` (torch) describe the two models. `source` and `mapping` map torch's names to Flax
paths. `fusion` presents fused layers to `pairing` as separate ones, `unmatched` raises for leftovers, and
`guesses` proposes a mapping. `reversible` holds the moves of arrays that all of them use.
"""

from .load_torch import links_of as links_of
from .load_torch import load_torch as load_torch
from .mapping import Mapping as Mapping
from .mapping import concatenated as concatenated
from .mapping import flattened as flattened
from .mapping import split as split
from .mapping import stacked as stacked
from .mapping import transposed as transposed
from .pairing import Link as Link
from .pairing import Links as Links
from .to_torch import to_torch as to_torch
