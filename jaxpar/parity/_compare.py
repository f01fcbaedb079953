"""compare: a torch model and a Flax model do the same task, and what both show is measured and judged.

    torch module ─┐                                                                 ┌─ Judged rows
    Flax module ──┼─► Sides ─► level: steps ─► Difference ... ─► judge ─► Comparison ┼─ Divergence
    inputs, loss ─┘                                                                 └─ Curve

torch has nothing like it. Neither module is changed.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .._interrupt import between_steps
from ..errors import NotDeterministicError
from . import _levels
from ._comparison import Comparison, require_same
from ._divergence import find
from ._judge import Level, Policy, judge
from ._levels import Batches, Findings, Sides
from ._measure import Kind, measure
from ._sides.flax_attention import softmax_in_float64
from ._sides.layout import Layout
from ._sides.pair import Pair
from ._sides.task import Batch, Loss, Optimizer, Seen, Task

if TYPE_CHECKING:
    import torch

Arrays = Any
"""One array, a tuple of arrays, or a function of the step's number (from 1) that returns either."""

HALF = ("bfloat16", "float16")


class Stopped(KeyboardInterrupt):
    """Ctrl-C: `comparison` has the steps that were completed, None if there was none."""

    def __init__(self, comparison: Comparison | None):
        super().__init__("parity.compare was stopped")
        self.comparison = comparison


def compare(
    torch_module: torch.nn.Module,
    flax_module: Any,
    inputs: Arrays,
    *,
    targets: Arrays = (),
    loss: Loss | None = None,
    optimizer: Optimizer | None = None,
    steps: int = 1,
    replicas: int = 1,
    level: str | Level = Level.SEMANTIC,
    dtype: str = "float32",
    resync: bool = True,
    training: bool | None = None,
    layout: str | tuple[str, str] | Layout = "same",
    mapping: Any = None,
    weights: str = "torch",
    variables: Any = None,
    torch_kwargs: Mapping[str, Any] | None = None,
    flax_kwargs: Mapping[str, Any] | None = None,
    seed: int = 0,
    policy: Policy | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Whether a Flax model is the same as a torch model: outputs, gradients, state, training.

    Args:
      torch_module: the reference. It works on the CPU, in torch's own DataParallel for `replicas` > 1.
      flax_module: an nnx.Module or a linen.Module.
      inputs: of one call, in torch's layout; a function of the step gives every step its own.
      targets: what the losses take after the outputs; likewise.
      loss: (torch's, JAX's), both called with (outputs, *targets). If left out, a fixed random
        projection of the outputs, in which every element counts.
      optimizer: (parameters -> torch optimizer, optax transformation).
      steps: of training. More than one needs an optimizer.
      replicas: N; the batch is split as DataParallel splits it, on both sides.
      level: "semantic", "numeric" or "trajectory".
      dtype: at the levels numeric and trajectory, the type that is asked about.
      resync: trajectory: every step starts from the reference; else both run freely, and a curve with
        an envelope says how far they went.
      training: the mode of both models; the torch module's own if left out.
      layout: "same", "channels_last" (axis 1 of arrays with three axes or more goes to the end for
        Flax), a pair of these for inputs and outputs, or a `parity.Layout`.
      mapping: which path is which; see `parity.match`. Names that agree need none.
      weights: "torch": Flax gets torch's. "own": each has its own, and they are compared.
      variables: of a Linen module, with weights="own".
      torch_kwargs, flax_kwargs: keyword arguments of every call of the model.
      seed: of the projection and of dropout. Masks are drawn by torch and used by both.
      policy: the bounds, if not those of the level.
      progress: called after every step with its number and the number of all.

    Raises:
      MatchError: leaves without a counterpart.
      NotDeterministicError: a model gives two results for the same batch.
      ValueError: arguments that contradict each other.
      Stopped: Ctrl-C; a KeyboardInterrupt with what was completed.

    No torch counterpart. The bounds are those of docs/comparison.md.
    """
    started = time.perf_counter()
    level = Level.parse(level)
    policy = policy or Policy(level)
    _check(level, steps, optimizer, replicas, dtype, weights)
    task = Task(
        training=torch_module.training if training is None else training,
        loss=loss,
        optimizer=optimizer,
        replicas=replicas,
        layout=Layout.parse(layout),
        torch_kwargs=dict(torch_kwargs or {}),
        flax_kwargs=dict(flax_kwargs or {}),
        seed=seed,
    )
    batches = _batches(inputs, targets, None if level is Level.SEMANTIC else dtype)
    findings = _levels.Findings()

    def result(divergence: Any = None) -> Comparison:
        return Comparison(
            level=level,
            rows=judge(findings.differences, policy, findings.noise),
            steps=findings.steps,
            replicas=replicas,
            divergence=divergence,
            curve=findings.curve,
            environment=environment(task, dtype if level is not Level.SEMANTIC else "float64"),
            notes=tuple(findings.notes),
            seconds=time.perf_counter() - started,
            policy=policy,
            subject=f"{type(torch_module).__name__} in torch against {type(flax_module).__name__} in Flax",
        )

    with exact(), between_steps() as check:
        pair = Pair.of(torch_module, flax_module, task, mapping, weights, variables, batches(1))
        try:
            for step in _steps(pair, level, dtype, resync, batches, steps, findings):
                if progress:
                    progress(step, steps)
                check()
        except KeyboardInterrupt as stop:
            findings.notes.append(f"stopped by Ctrl-C after step {findings.steps} of {steps}")
            raise Stopped(result() if findings.differences else None) from stop
        compared = result()
        if compared.same or replicas > 1:
            return compared
        return result(find(pair, batches, compared))


def assert_parity(*args: Any, **kwargs: Any) -> Comparison:
    """`compare`, which see, for tests: it passes if both are the same, and returns the comparison.

    Raises:
      ParityError: they are not; the message has the table, the first divergent layer and the likely cause.
    """
    comparison = compare(*args, **kwargs)
    require_same(comparison)
    return comparison


def _check(
    level: Level, steps: int, optimizer: Optimizer | None, replicas: int, dtype: str, weights: str
) -> None:
    if steps < 1 or replicas < 1:
        raise ValueError(f"parity.compare: steps={steps} and replicas={replicas} must be at least 1.")
    if steps > 1 and not optimizer:
        raise ValueError(
            f"parity.compare: steps={steps} without an optimizer are all the same step. Give "
            "optimizer=(lambda parameters: torch.optim.SGD(parameters, 0.1), optax.sgd(0.1))."
        )
    if level is Level.TRAJECTORY and not optimizer:
        raise ValueError("parity.compare: level='trajectory' compares updates; give an optimizer.")
    if level is Level.NUMERIC and steps > 1:
        raise ValueError(
            "parity.compare: level='numeric' is about one step; for several there is 'trajectory'."
        )
    if dtype not in ("float32", *HALF):
        raise ValueError(f"parity.compare: dtype={dtype!r} is none of float32, {', '.join(HALF)}.")
    if weights not in ("torch", "own"):
        raise ValueError(f"parity.compare: weights={weights!r} is neither 'torch' nor 'own'.")


def _batches(inputs: Arrays, targets: Arrays, dtype: str | None) -> Batches:
    """The batch of a step. With a dtype its values are first rounded to that, the same for all sides."""

    def arrays(what: Arrays, step: int, name: str) -> tuple[np.ndarray, ...]:
        given = what(step) if callable(what) else what
        several = given if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
        return tuple(_array(x, f"{name}[{i}]", dtype) for i, x in enumerate(several))

    return lambda step: Batch(arrays(inputs, step, "inputs"), arrays(targets, step, "targets"))


def _array(x: Any, name: str, dtype: str | None) -> np.ndarray:
    array = x.detach().numpy() if hasattr(x, "detach") else np.asarray(x)
    if array.dtype.kind not in "biufcV":
        raise TypeError(f"parity.compare: {name} is {type(x).__name__}, not an array of numbers.")
    floating = jax.numpy.issubdtype(array.dtype, jax.numpy.floating)
    return array.astype(jax.numpy.dtype(dtype)) if dtype and floating else array


def _steps(
    pair: Pair, level: Level, dtype: str, resync: bool, batches: Batches, steps: int, findings: Findings
) -> Iterator[int]:
    """Runs the level; what it finds is in `findings` after each step."""
    sides = pair.sides(level, dtype)
    findings.notes += sides.candidate.net.notes
    if pair.weights == "own":
        weights = sides.candidate.weights(), sides.reference.weights()
        findings.differences += measure(*weights, Kind.WEIGHT, 0)
    _check_determinism(pair, sides, batches(1))
    if level is Level.SEMANTIC:
        yield from _levels.semantic(sides, batches, steps, findings)
    elif level is Level.NUMERIC:
        yield from _levels.numeric(sides, batches, steps, findings)
    else:
        run = _levels.resynchronised if resync else _levels.free
        yield from run(sides, batches, steps, findings)


def _check_determinism(pair: Pair, sides: Sides, batch: Batch) -> None:
    """The same batch twice must give the same bits, or every verdict is an accident."""
    first, second = (pair.reference(sides.reference.dtype).step(batch) for _ in range(2))
    _require_equal("the torch module", first, second)
    first, second = (sides.candidate.step(batch, first.masks, keep=False) for _ in range(2))
    _require_equal("the Flax module", first, second)


def _require_equal(what: str, first: Seen, second: Seen) -> None:
    for part in ("outputs", "state", "gradients"):
        for name, x in getattr(first, part).items():
            y = getattr(second, part)[name]
            if x.tobytes() != y.tobytes():
                spread = np.nanmax(np.abs(x.astype(np.float64) - y.astype(np.float64)))
                raise NotDeterministicError(
                    f"parity.compare: {what} gives two results for the same batch: {part} {name} differs by "
                    f"{spread:.2g}. Compare in evaluation mode, or take what draws random numbers out of it "
                    "(masks of torch's dropout are passed on by themselves)."
                )


@contextmanager
def exact() -> Iterator[None]:
    """float64 exists, and no matrix product is rounded to fewer digits than its type has."""
    with ExitStack() as stack:
        stack.enter_context(jax.enable_x64(True))
        stack.enter_context(jax.default_matmul_precision("highest"))
        stack.enter_context(softmax_in_float64())
        yield


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def environment(task: Task, dtype: str) -> dict[str, str]:
    """What the numbers depend on."""
    import torch

    return {
        "dtype": dtype,
        "torch": torch.__version__,
        **{name: _version(name) for name in ("jax", "jaxlib", "flax", "optax", "numpy", "jaxpar")},
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {platform.system()}",
        "jax device": str(jax.devices()[0].device_kind),
        "matmul precision": "highest",
        "torch threads": str(torch.get_num_threads()),
        "torch cpu capability": torch.backends.cpu.get_cpu_capability(),
        "seed": str(task.seed),
        "mode": "training" if task.training else "evaluation",
    }
