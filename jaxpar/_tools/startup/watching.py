"""Run a script with a clock: its imports, JAX's reports on tracing and compiling, and calls of steps."""

from __future__ import annotations

import functools
import os
import runpy
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import SpecError
from .clock import BEFORE, COMPILE, LOWER, MODULES, RANKS, READ, START, TRACE, Clock

EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": (TRACE, "traced"),
    "/jax/core/compile/jaxpr_to_mlir_module_duration": (LOWER, "lowered"),
    "/jax/core/compile/backend_compile_duration": (COMPILE, "compiled"),
}
"""JAX's reports (`jax.monitoring`): the phase, and the attribute of Counts."""
HIT = "/jax/compilation_cache/cache_hits"
RETRIEVAL = "/jax/compilation_cache/cache_retrieval_time_sec"

TIMED = {
    "flax.nnx": ("Pytree.__class__.__call__",),  # makes every nnx.Module, nnx.Optimizer and nnx.Rngs
    "flax.linen": ("Module.init",),
    "jaxpar.distributed._process_group": ("init_process_group",),
    "jaxpar.distributed.exchange": ("exchange", "exchange_json", "collect", "run", "read", "read_blocking"),
}
"""Functions that make modules, or wait for ranks; replaced before a different module imports them."""


class EndOfSteps(BaseException):
    """Ends the script after its last watched step. Not an Exception, which a script may catch."""


class StartupWatch:
    """Enters the phases of a clock while a script runs, and ends the script after `steps` training steps."""

    def __init__(self, clock: Clock, steps: int):
        self.clock, self.last, self.calls = clock, steps, 0
        self._open = threading.local()
        self._undo: list[Callable[[], Any]] = []
        self._prepare: dict[str, Callable[[Any], None]] = {
            "jax": self._listen,
            "jaxpar._training.train_step": self._watch_steps,
            **{name: functools.partial(self._replace, paths) for name, paths in TIMED.items()},
        }

    @contextmanager
    def active(self) -> Iterator[None]:
        """Watch until the end of the context, which a script may leave by EndOfSteps."""
        sys.meta_path.insert(0, self)
        self._undo.append(lambda: sys.meta_path.remove(self))
        for name in set(self._prepare) & set(sys.modules):
            self._prepare[name](sys.modules[name])
        try:
            yield
        except EndOfSteps:
            pass
        finally:
            self.clock.begin(self.clock.part)
            while self._undo:
                self._undo.pop()()

    # ------------------------------------------------------------------------------------------- imports

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of the next finder that has one; executing its module is a phase."""
        finders = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in finders)), None)
        loader = getattr(spec, "loader", None)
        if loader is None or isinstance(loader, type) or not hasattr(loader, "__dict__"):
            return spec  # a module of the interpreter, which costs nothing
        timed = functools.partial(self._within, self.clock.phase, f"import {name.partition('.')[0]}")
        # Creating the module of an extension loads its library.
        loader.create_module = timed(loader.create_module)
        execute = timed(loader.exec_module)

        def exec_module(module: Any) -> None:
            execute(module)
            if name in self._prepare:
                self._prepare[name](module)

        loader.exec_module = exec_module
        return spec

    # ------------------------------------------------------------------------- functions that are phases

    def _within(self, context: Callable[[str], Any], name: str, function: Callable[..., Any]) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with context(name):
                return function(*args, **kwargs)

        return call

    def _modules(self, name: str) -> Any:
        # Modules that a step makes belong to the step.
        return self.clock.inside(name if self.clock.part == BEFORE else self.clock.part)

    def _replace(self, paths: tuple[str, ...], module: Any) -> None:
        is_flax = module.__name__.startswith("flax")
        context, name = (self._modules, MODULES) if is_flax else (self.clock.phase, RANKS)
        for path in paths:
            *outer, attribute = path.split(".")
            holder = functools.reduce(getattr, outer, module)
            self._set(holder, attribute, self._within(context, name, getattr(holder, attribute)))

    def _set(self, holder: Any, name: str, value: Any) -> None:
        before = vars(holder).get(name)
        restore = functools.partial(setattr, holder, name, before)
        self._undo.append(functools.partial(delattr, holder, name) if before is None else restore)
        setattr(holder, name, value)

    # --------------------------------------------------------------------------------------- JAX's reports

    def _listen(self, jax: Any) -> None:
        from ..._upstream import start

        self._start = start
        self._undo.append(start.around_start(functools.partial(self._within, self.clock.phase, START)))
        monitoring = jax.monitoring
        for kind, listener in (
            ("scalar", self._on_start),
            ("event_duration_secs", self._on_end),
            ("event", self._on_event),
        ):
            getattr(monitoring, f"register_{kind}_listener")(listener)
            unregister = getattr(monitoring, f"unregister_{kind.removesuffix('_secs')}_listener")
            self._undo.append(functools.partial(unregister, listener))

    @property
    def _programs(self) -> list[list]:
        """This thread's programs in a trace, in lowering or in XLA: the user's line, cache hits, traces."""
        if not hasattr(self._open, "programs"):
            self._open.programs = []
        return self._open.programs

    def _on_start(self, event: str, value: float, **tags: Any) -> None:
        if event in EVENTS:
            self._programs.append([self._start.innermost(sys._getframe(1)) or "", 0, self._start.traces()])
            self.clock.enter(EVENTS[event][0])

    def _on_event(self, event: str, **tags: Any) -> None:
        if event == HIT and self._programs:
            self._programs[-1][1] += 1

    def _on_end(self, event: str, seconds: float, **tags: Any) -> None:
        if event == RETRIEVAL:
            self.clock.move(READ, seconds)
        elif event in EVENTS and self._programs:
            line, hits, traces = self._programs.pop()
            self.clock.leave()
            if EVENTS[event][0] == TRACE and self._start.traces() == traces:
                return  # JAX had traced it before
            counts, kind = self.clock.counts(str(tags.get("fun_name", "?")), line), EVENTS[event][1]
            setattr(counts, kind, getattr(counts, kind) + 1)
            counts.cached += hits
            counts.seconds += seconds

    # ---------------------------------------------------------------------------------------------- steps

    def _watch_steps(self, module: Any) -> None:
        call, construct, watch = module.TrainStep.__call__, module.TrainStep.__init__, self

        @functools.wraps(construct)
        def __init__(step: Any, net: Any, optimizer: Any, loss_fn: Any, *args: Any) -> None:
            construct(step, net, optimizer, watch._counted(loss_fn), *args)

        @functools.wraps(call)
        def __call__(step: Any, *batch: Any, **kwargs: Any) -> Any:
            import jax

            watch.calls += 1
            watch.clock.begin(f"step {watch.calls}")
            outputs = jax.block_until_ready(call(step, *batch, **kwargs))
            if watch.calls == watch.last:
                raise EndOfSteps
            watch.clock.begin(f"between steps {watch.calls} and {watch.calls + 1}")
            return outputs

        self._set(module.TrainStep, "__init__", __init__)
        self._set(module.TrainStep, "__call__", __call__)

    def _counted(self, loss_fn: Any) -> Any:
        """Return the loss function, which counts its traces: JAX reports whole programs only."""
        if not isinstance(loss_fn, types.FunctionType):
            return loss_fn
        name, code = loss_fn.__name__, loss_fn.__code__
        line = f"{code.co_filename}:{code.co_firstlineno}"

        @functools.wraps(loss_fn)
        def loss(*args: Any, **kwargs: Any) -> Any:
            self.clock.functions[name, line].traced += 1
            return loss_fn(*args, **kwargs)

        return loss


def run_script(path: str, function: str, arguments: tuple[str, ...], steps: int) -> tuple[Clock, int]:
    """Run a script, or one of its functions, as Python would; return its clock and the calls of steps.

    Exceptions of the script pass, SystemExit among them if it is a failure.
    """
    argv = sys.argv[:]
    sys.argv[:] = [path, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    watch = StartupWatch(Clock(), steps)
    try:
        with watch.active():
            try:
                names = runpy.run_path(path, run_name="__main__" if not function else "startup")
                if function and function not in names:
                    raise SpecError(f"{path}: it does not define {function}.")
                if function:
                    names[function]()
            except SystemExit as end:
                if end.code not in (None, 0):
                    raise
    finally:
        sys.argv[:] = argv
        sys.path.pop(0)
    return watch.clock, watch.calls
