"""The rulebook: the names and layouts of each layer's tensors in torch and in Flax.

`rule_for(layer)` finds the row of a layer of flax.nnx, flax.linen or jaxpar.nn by its class or nearest base
class. `Rule.to_flax` and `Rule.to_torch` convert the layer's arrays by their names inside the layer. The
rulebook does not use a model's paths, and imports neither JAX, Flax nor torch.

To add a row, put a line in `ROWS` of the layer's file (or of a new file, listed in `lookup._BOOKS`): the key
is "jaxpar.nn.Class", "nnx.Class" or "linen.Class", the value a `Rule`, or a function `(layer, shapes) -> Rule
| None` if the row depends on the layer's settings. A `Rule` is a torch class and `Part`s:

    "jaxpar.nn.Bilinear": Rule("Bilinear", (same("weight"), same("bias"))),
    "jaxpar.nn.MaxPool": Rule("MaxPool2d", (), "last", also=("MaxPool1d", "MaxPool3d")),

* `same("weight", "scale")`: the same array under a different name;
* `kernel()`: (O, I, *k) to (*k, I, O), so also the transpose of a Linear's weight;
* `Part(torch_names, flax_leaves, to_flax, to_torch)`: anything else, many-to-many, with two more functions
  if gradients convert differently from values.

Optional tensors (biases) need no special treatment: a part whose names or leaves are missing is skipped.
"""

from .lookup import ROWS as ROWS
from .lookup import rule_for as rule_for
from .rule import Part as Part
from .rule import Rule as Rule
from .rule import Shapes as Shapes
from .rule import kernel as kernel
from .rule import same as same
