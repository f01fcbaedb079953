"""call_arrays: a module's arrays, together with the arrays of the modules and streams among a call's
arguments.

One network alone is an NNX object like any other. Several networks, or objects among the arguments, are a
bundle, in which every variable occurs once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from flax import nnx

from .._parallel.modules.bundle import Bundle, BundleFunction, nets_of
from .._parallel.placement import Placement
from .._typing import Static
from .arrays import ModuleArrays
from .world import World

MOST = 4
"""Bundles that are cached. They hold the objects of a call, which the caller may create anew each time."""


class CallArrays(ModuleArrays):
    """Args:
      net: the object that optimizers are made from: a module or a bundle. module: the same, or what it wraps.

    Attributes:
      net: the same with the objects of the last call. objects: these objects.
    """

    def __init__(
        self,
        net: nnx.Module,
        module: nnx.Module,
        placement: Placement | None,
        world: World,
        function: str = "train_step",
    ):
        super().__init__(net, module, nnx.Nothing(), placement, world, {}, function)
        self.net, self._alone = net, (net, module)
        self.objects: tuple[Any, ...] = ()
        self._bundles: dict[tuple[int, ...], tuple[tuple[Any, ...], Bundle, Bundle]] = {}

    def loss_of(self, function: Callable[..., Any]) -> Static:
        """Return a function of the networks and the arguments as a function of the bundle."""
        return Static(BundleFunction(function) if isinstance(self.thing, Bundle) else function)

    def bring(self, objects: tuple[Any, ...]) -> None:
        """Set the objects among the arguments of the next calls."""
        if len(objects) == len(self.objects) and all(map(operator.is_, objects, self.objects)):
            return
        self.objects = objects
        self.net, self.thing = self._bundled(objects) if objects else self._alone
        self.read()

    def _bundled(self, objects: tuple[Any, ...]) -> tuple[Bundle, Bundle]:
        key = tuple(map(id, objects))  # of objects that the entry keeps alive
        if key not in self._bundles:
            if len(self._bundles) == MOST:
                del self._bundles[next(iter(self._bundles))]
            net, module = (_with(base, objects) for base in self._alone)
            self._bundles[key] = objects, net, module
        return self._bundles[key][1:]


def _with(net: Any, objects: tuple[Any, ...]) -> Bundle:
    return Bundle(nets_of(net) if isinstance(net, Bundle) else net, objects)
