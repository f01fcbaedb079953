"""The rules: which word of torch is which word of JAX, one line each.

    view(*shape) -> {self:a}.reshape({shape})
    torch.cat(tensors, dim=) -> jnp.concatenate({tensors}<, axis={dim}>)

On the left a call: `dim=` may be missing, `*shape` is all that follow, `out?` may be given and is left out.
On the right what is written instead: `{dim}` is the argument, `<...>` is left out where an argument in it is
missing. `:a` puts what is longer than a word into parentheses, `:t` makes a tuple of a shape or of axes,
however it was given, `:s` single arguments of a list, `:n` a number of a flag. `{rngs}` is the stream that
random numbers are drawn from. Of several lines for a word the first one that has place for all arguments is
taken; a call without a line becomes a hole. What stands behind `#` is said of the line in `port.notes`.

`methods` are those of a tensor, `functions` those of modules of torch, `names` what is not called.
"""

from .functions import FUNCTIONS as FUNCTIONS
from .layers import ACCEPTING as ACCEPTING
from .layers import DROPPED as DROPPED
from .layers import LEAVES as LEAVES
from .layers import RANDOM as RANDOM
from .methods import IN_PLACE as IN_PLACE
from .methods import INITIAL as INITIAL
from .methods import METHODS as METHODS
from .methods import PAIRS as PAIRS
from .names import ATTRIBUTES as ATTRIBUTES
from .names import CONTEXTS as CONTEXTS
from .names import MODULES as MODULES
from .names import NAMES as NAMES
from .names import SILENT as SILENT
from .rule import Rule as Rule
from .transformers_words import LIBRARY_NAMES as LIBRARY_NAMES
from .transformers_words import LIBRARY_SILENT as LIBRARY_SILENT
