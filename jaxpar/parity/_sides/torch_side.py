"""TorchSide: a step of the torch model in one element type, alone or in torch's DataParallel."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import Parameter
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import torch

from ..._typing import PyTree, Shape
from .._tensors import array_of, is_tensor, tensor_of
from .call_arguments import Call, not_passed
from .constants import Constants
from .outputs import Outputs, named, outputs_of
from .step_data import OWN, Batch, Named, Observation, Task, factors, in_type_of, real_parts
from .torch_dropout import Capture
from .torch_float64 import Rounding, Within, in_float64, widen

if TYPE_CHECKING:
    from .._weights import Links

TO = {"float32": "float", "bfloat16": "bfloat16", "float16": "half"}
"""Methods that cast a module's real tensors. `Module.to` would make complex ones real."""


class TorchFunction(torch.nn.Module):
    """A function as a module without parameters."""

    def __init__(self, function: Callable[..., PyTree]):
        super().__init__()
        self.function, self.shown_name = function, getattr(function, "__name__", type(function).__name__)

    def forward(self, *args: Any, **kwargs: Any) -> PyTree:
        return self.function(*args, **kwargs)


def torch_parameters(module: torch.nn.Module, call: Call) -> list[Parameter]:
    """Return the parameters of the model's function that a call does not pass."""
    function = module.function if isinstance(module, TorchFunction) else module.forward
    return not_passed(function, call.args, call.kwargs)


class TorchSide:
    """A CPU copy of `module` with floating tensors in `dtype` ("float64", "bfloat16"; OWN keeps their types).

    `returned` describes the structure of the last outputs, and `drawn` has the names of random functions that
    the last step ran besides dropout; `rounding` makes a `Rounding` for each step, or is
    None.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        links: Links | TorchLinks,
        task: Task,
        dtype: str,
        constants: Constants | None = None,
    ):
        self.dtype, self.torch_dtype = dtype, getattr(torch, dtype, None)
        # On the CPU, because GPU kernels with atomic additions are not reproducible.
        self.module = copy.deepcopy(module).to("cpu")
        if self.module.training != task.training:  # otherwise its submodules may have modes of their own
            self.module.train(task.training)
        self.constants = (constants or Constants()) if dtype == "float64" else None
        if self.constants:
            widen(self.module, self.constants, {name for part in links.parts for name in part.torch})
        elif dtype != OWN:
            getattr(self.module, TO[dtype])()
        self.links, self.task = links, task
        self.rounding: Callable[[], Rounding] | None = None
        self.device = torch.device("cpu")
        self.steps = 0
        self.returned = Outputs({})
        # Both sides use torch's names, so here each name maps to itself.
        self.chosen = None if task.outputs is None else {name: name for name in task.outputs}
        self.drawn: set[str] = set()
        self.optimizer = task.optimizer[0](list(self.module.parameters())) if task.optimizer else None

    def step(
        self,
        batch: Batch,
        observe: AbstractContextManager | None = None,
        forward_only: bool = False,
        masks: Sequence[np.ndarray] | None = None,
    ) -> Observation:
        """Take a training step; `observe` is entered around forward pass and loss.

        `masks` replace those that dropout would draw.
        """
        # None, not zeros: optimizers skip parameters without a gradient, including their weight decay.
        self.module.zero_grad(set_to_none=True)
        random, capture = seeded(self.task.seed + self.steps), Capture(masks)
        with self._wrapped() as net, random, self._wide(), capture as dropout:
            # A model may write to its inputs, which torch refuses for those that it differentiates by.
            differentiated = batch.common and not forward_only
            call = batch.torch_call.map(self._input if differentiated else self._tensor)
            with observe or nullcontext():
                outputs = net(*call.args, **call.kwargs)
                leaves = self.leaves(outputs)
                loss = self._loss(outputs, leaves, batch.targets)
            if loss.requires_grad and not forward_only:
                loss.backward()
            gradients = self._gradients()
            # Before the update, which changes an output that is a parameter.
            compared = {name: self.task.layout.outputs(to_numpy(x)) for name, x in leaves.items()}
            if self.optimizer and not forward_only:
                self.optimizer.step()
        self.steps += 1
        self.drawn = dropout.drawn
        arrays = self._arrays()
        return Observation(
            outputs=compared,
            loss={"": to_numpy(loss)} if self.task.loss else {},
            input_gradients={
                flax_name: move(to_numpy(_gradient(call.arrays[name])))
                for name, (flax_name, move) in batch.common.items()
            },
            gradients=gradients,
            state=self.links.state(arrays),
            weights=self.links.parameters(arrays),
            masks=tuple(to_numpy(mask) for mask in dropout.masks),
        )

    def leaves(self, outputs: PyTree) -> dict[str, torch.Tensor]:
        compared = outputs_of("the torch module", outputs, is_tensor, self.chosen)
        self.returned = Outputs({}, compared.sole, compared.left_out, compared.numbers)
        return compared.arrays

    def weights(self) -> Named:
        return self.links.parameters(self._arrays())

    def state(self) -> Named:
        return self.links.state(self._arrays())

    def continue_from(self, other: TorchSide, with_optimizer: bool = True) -> None:
        self.module.load_state_dict(other.module.state_dict())
        if with_optimizer and self.optimizer and other.optimizer:
            self.optimizer.load_state_dict(copy.deepcopy(other.optimizer.state_dict()))
        self.steps = other.steps

    @contextmanager
    def _wide(self) -> Iterator[None]:
        with (
            self.rounding() if self.rounding else nullcontext(),
            in_float64(self.constants) if self.constants else nullcontext(),
        ):
            yield

    @contextmanager
    def _wrapped(self) -> Iterator[torch.nn.Module]:
        if self.task.replicas == 1:
            yield self.module
            return
        import torch_ref

        # Both changes are process-wide for the length of a step: torch's DataParallel queries global modules
        # of torch for its devices, and the number of threads is a global setting.
        with torch_ref.pretend(self.task.replicas) as devices:
            self.device = devices.device
            module = self.module.to(self.device)
            replica = Within(module, self._wide) if self.constants else module
            net = torch.nn.DataParallel(replica, list(range(devices.count)))
            # Every replica runs in a thread. With a pool of threads for each, a step can take seconds.
            with one_thread():
                yield net

    def _tensor(self, x: np.ndarray) -> torch.Tensor:
        wide = self.constants is not None and jnp.issubdtype(x.dtype, jnp.floating)
        # Widened in NumPy: a float32 tensor would be treated as a constant that was rounded before.
        tensor = tensor_of(np.array(x, np.float64 if wide else x.dtype, order="C"))
        return tensor.to(self.device, self.torch_dtype if tensor.is_floating_point() else None)

    def _input(self, x: np.ndarray) -> torch.Tensor:
        tensor = self._tensor(x)
        return tensor.requires_grad_() if tensor.is_floating_point() else tensor

    def _loss(
        self, outputs: PyTree, leaves: dict[str, torch.Tensor], targets: tuple[np.ndarray, ...]
    ) -> torch.Tensor:
        if self.task.loss:
            return self.task.loss[0](outputs, *(self._tensor(y) for y in targets))
        # Integer outputs, such as an argmax, have no gradient.
        real = real_parts(leaves)
        projection = self.projection({name: tuple(x.shape) for name, x in real.items()})
        terms = [(x * self._tensor(projection[name])).sum() for name, x in real.items()]
        return sum(terms, torch.zeros((), dtype=self.torch_dtype, device=self.device))

    def projection(self, shapes: Mapping[str, Shape]) -> Named:
        return {name: in_type_of(self.dtype, x) for name, x in factors(shapes, self.task.seed).items()}

    def _gradients(self) -> Named:
        parameters = self.module.named_parameters(remove_duplicate=False)
        # For a complex parameter, JAX's gradient is the conjugate of torch's.
        gradients = {name: to_numpy(_gradient(p).conj()) for name, p in parameters}
        return self.links.gradients(gradients)

    def _arrays(self) -> Named:
        return {name: to_numpy(x) for name, x in self.module.state_dict().items()}


def _gradient(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread, in the whole process.

    Several wait for each other over a few numbers at a time, on the processors that JAX compiles on.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's CPU generator, and restore its state on exit.

    The generator is process-wide: a thread that draws meanwhile changes the numbers (NotDeterministicError).
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    return array_of(tensor).copy()


def named_leaves(tree: PyTree) -> dict[str, torch.Tensor]:
    return named(tree, is_tensor)


class TorchLinks:
    """The links of a torch model with itself: every array keeps its name and its layout.

    `names` are those that a comparison has, by default all.
    """

    def __init__(self, module: torch.nn.Module, names: Collection[str] | None = None):
        self.parameters_of = {name for name, _ in module.named_parameters(remove_duplicate=False)}
        self.names = frozenset(module.state_dict() if names is None else names)
        self.torch = tuple(self.names)
        self.parts = (self,)

    def parameters(self, tensors: Named) -> Named:
        return {name: x for name, x in self.to_flax(tensors).items() if name in self.parameters_of}

    def state(self, tensors: Named) -> Named:
        return {name: x for name, x in self.to_flax(tensors).items() if name not in self.parameters_of}

    def to_flax(self, tensors: Named, gradient: bool = False) -> Named:
        return {name: x for name, x in tensors.items() if name in self.names}

    def gradients(self, tensors: Named) -> Named:
        return self.to_flax(tensors)
