"""The rules: torch's calls and their counterparts in JAX, one line each.

    view(*shape) -> {self:a}.reshape({shape})
    torch.cat(tensors, dim=) -> jnp.concatenate({tensors}<, axis={dim}>)

The left side is a call: `dim=` is optional, `*shape` collects the remaining arguments, `out?` is dropped, and
`exp|log()` are several. The right side is its replacement: `{dim}` is the argument, `{}` the last part of the
call's name, `<...>` is left out if an argument inside was not passed. `:a` parenthesises operators, `:t`
writes a shape or axes as a tuple, however they were passed, `:s` a list as single arguments, `:n` a flag as a
number. `{rngs}` is the stream that random numbers are drawn from. If a call has several lines, the first one
that accepts all arguments applies; a call without a line becomes a hole. The text after `#` is added to
`port.notes`; a line whose text is `SHAPE` is for constructors, whose numbers are known, and a hole in a call.

`methods` lists a tensor's methods, `functions` torch's functions, `names` whatever is not called, and
`layers` describes torch's layers.
"""

from .functions import FUNCTIONS as FUNCTIONS
from .functions import IN_CALL as IN_CALL
from .functions import as_value as as_value
from .layers import ACCEPTING as ACCEPTING
from .layers import DROPPED as DROPPED
from .layers import RANDOM as RANDOM
from .layers import leaves as leaves
from .methods import IN_PLACE as IN_PLACE
from .methods import INITIAL as INITIAL
from .methods import METHODS as METHODS
from .methods import PAIRS as PAIRS
from .names import ATTRIBUTES as ATTRIBUTES
from .names import CONTEXTS as CONTEXTS
from .names import MODULES as MODULES
from .names import NAMES as NAMES
from .names import SILENT as SILENT
from .rule import SHAPE as SHAPE
from .rule import CallRule as CallRule
from .transformers_names import LIBRARY_NAMES as LIBRARY_NAMES
from .transformers_names import LIBRARY_SILENT as LIBRARY_SILENT
