"""call_arrays: a module's arrays, and the modules and streams among a call's arguments."""

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

MOST = 4  # cached bundles, which hold the objects of a call


class CallArrays(ModuleArrays):
    """The arrays of `module` and of the objects among a call's arguments; `net` may be its wrapper."""

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
        return Static(BundleFunction(function) if isinstance(self.thing, Bundle) else function)

    def bring(self, objects: tuple[Any, ...]) -> None:
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
            bases = (nets_of(x) if isinstance(x, Bundle) else x for x in self._alone)
            net, module = (Bundle(base, objects) for base in bases)
            self._bundles[key] = objects, net, module
        return self._bundles[key][1:]
