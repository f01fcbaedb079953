"""Weights: matching a torch model with a Flax model, and moving arrays between them.

    links = links_of(flax_module, torch_module, mapping=..., inputs=...)
    links.layers                      # Link(torch path, flax path, Rule or None, parts), in Flax's order
    links.pairs                       # ((torch names), (Flax leaves)) that make each other
    links.to_flax(arrays)             # {torch name: array} to {leaf path: array}; also of a subset
    links.gradients(arrays)           # the same for gradients
    links.parameters(arrays), links.state(arrays)
    links.to_torch(leaves, gradient=False)

    here = tree(flax_module, inputs, kwargs, variables)
    here.leaves                       # {leaf path: Leaf(shape, dtype, parameter)}
    here.values(); here.write(leaves)

    source(torch_module)              # names, shapes, kinds and ties of a module, state_dict or file

A way through the files: `tree` (Flax) and `source` (torch) are what is there, `names` and `mapping`
how torch's names lead to Flax's paths, `linking` pairs them, `matching` raises or suggests, and
`load` and `give` are the public verbs.
"""

from .._tensors import array_of as array_of
from .._tensors import tensor_of as tensor_of
from .give import to_torch as to_torch
from .links import Link as Link
from .links import Links as Links
from .load import links_of as links_of
from .load import load_torch as load_torch
from .mapping import Mapping as Mapping
from .mapping import flattened as flattened
from .mapping import transposed as transposed
from .matching import match as match
from .source import Source as Source
from .source import source as source
from .tree import Leaf as Leaf
from .tree import Tree as Tree
from .tree import tree as tree
