"""Convert weights between torch's and Flax's names and layouts, from arrays to arrays in memory.

The Flax module only supplies the leaves' names and layouts, so shapes suffice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import MatchError
from ._sides.call_arguments import Call
from ._sides.step_data import Layout
from ._weights.load_torch import converted
from ._weights.mapping import Entries
from ._weights.source import source_of
from ._weights.to_torch import implied_source, state_dict
from ._weights.tree import FlaxModule, Tree, Variables, tree_of
from ._weights.unmatched import complete_links


def call_of(inputs: Any, kwargs: Mapping[str, Any] | None, layout: Layout) -> dict[str, Any]:
    """Return a Conversion's `inputs` and `kwargs` for inputs in torch's layout, as for `compare`."""
    call = Call.of(inputs).map(layout.inputs).with_kwargs(Call.of((), kwargs))
    return {"inputs": call.args, "kwargs": call.kwargs}


@dataclasses.dataclass(frozen=True)
class Conversion:
    """Converts between torch's state_dict and a Flax module's arrays; takes the arguments of `load_torch`.

    `label` is the prefix of error messages. Flax's arrays are named by the module's variables, including
    Linen's collections.

    >>> import numpy as np
    >>> from flax import nnx
    >>> from jaxpar.parity.conversion import Conversion
    >>> conversion = Conversion(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    >>> arrays = conversion.to_flax({"weight": np.ones((3, 2)), "bias": np.zeros(3)})
    >>> {name: x.shape for name, x in sorted(arrays.items())}
    {'bias': (3,), 'kernel': (2, 3)}
    """

    flax_module: FlaxModule
    inputs: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = None
    variables: Variables | None = None
    mapping: Entries | None = None
    ignore_torch: Sequence[str] = ()
    ignore_flax: Sequence[str] = ()
    label: str = "Conversion"

    def to_flax(self, tensors: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Convert a torch state_dict of tensors or arrays. Raises: MatchError: they are not the model's."""
        tree, torch_weights = self._tree(), source_of(tensors)
        links = complete_links(
            tree, torch_weights, self.mapping, self.ignore_torch, self.ignore_flax, self.label
        )
        return {tree.files[path]: leaf for path, leaf in converted(links, torch_weights).items()}

    def to_torch(self, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Convert Flax's arrays back to a state_dict of arrays. Raises: MatchError, as to_flax."""
        tree = self._tree()
        torch_source = implied_source(tree, self.mapping, self.ignore_flax)
        links = complete_links(
            tree, torch_source, self.mapping, self.ignore_torch, self.ignore_flax, self.label
        )
        leaf_paths = {tree.files[path]: path for part in links.parts for path in part.flax}
        if leaf_paths.keys() != arrays.keys():
            raise MatchError(
                f"{self.label}: it is not this model's file in Flax's layout. Only in the file: "
                f"{_some(arrays.keys() - leaf_paths.keys())}; only in the model: "
                f"{_some(leaf_paths.keys() - arrays.keys())}."
            )
        file_arrays = source_of(arrays)
        leaves = {path: file_arrays[name] for name, path in leaf_paths.items()}
        for path, leaf in leaves.items():
            shape = tree.leaves[path].shape
            if leaf.shape != shape:
                raise MatchError(
                    f"{self.label}: {path} is {leaf.shape} in the file and {shape} in the model."
                )
        return state_dict(links, leaves, torch_source)

    def _tree(self) -> Tree:
        return tree_of(self.flax_module, self.inputs, self.kwargs, self.variables)


def _some(names: set[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - 5} more" if len(listed) > 5 else ""
    return ", ".join(listed[:5]) + more if listed else "nothing"
