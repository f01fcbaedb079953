"""Names of torch that have a different name here, for errors and docs/migration.md."""

from __future__ import annotations

import contextlib
import importlib
import opcode
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import lazy_loader

from ._arguments import check_on_import

COUNTERPARTS = {
    "torch.Tensor": "jax.Array",
    "torch.tensor": "jax.numpy.array",
    "torch.from_numpy": "jax.numpy.asarray",
    "torch.no_grad": "nothing, as only value_and_grad records anything; jax.lax.stop_gradient for an array",
    "torch.inference_mode": "nothing, as only value_and_grad records anything",
    "torch.manual_seed": "flax.nnx.Rngs(seed); jaxpar.random.torch_init(net, seed) for torch's weights, "
    "jaxpar.random.Generator(seed) for torch's draws",
    "torch.save": "jaxpar.Checkpointer(folder).save(0, net=net); jaxpar.parity.write_weights for torch's",
    "torch.load": "jaxpar.Checkpointer(folder).restore(net=net); jaxpar.parity.read_weights for torch's",
    "torch.compile": "flax.nnx.jit; jaxpar.train_step compiles a whole training step",
    "torch.autocast": "jaxpar.train_step(..., precision=jaxpar.Precision(jax.numpy.bfloat16))",
    "torch.amp": "jaxpar.train_step(..., precision=jaxpar.Precision(jax.numpy.bfloat16))",
    "torch.GradScaler": "jaxpar.Precision(jax.numpy.float16), which scales the loss",
    "torch.set_default_dtype": 'jax.config.update("jax_enable_x64", True), and param_dtype= of a layer',
    "torch.utils": "jaxpar.data for torch.utils.data, jax.checkpoint for torch.utils.checkpoint",
    "torch.nn.Module": "flax.nnx.Module",
    "torch.nn.Parameter": "flax.nnx.Param",
    "torch.nn.Buffer": "flax.nnx.Variable",
    "torch.nn.Sequential": "flax.nnx.Sequential; jaxpar.nn.channels_first.Sequential with torch's names",
    "torch.nn.ModuleList": "flax.nnx.List; jaxpar.nn.channels_first.ModuleList",
    "torch.nn.ModuleDict": "flax.nnx.Dict; jaxpar.nn.channels_first.ModuleDict",
    "torch.nn.ParameterList": "flax.nnx.List",
    "torch.nn.ParameterDict": "flax.nnx.Dict",
    "torch.nn.UpsamplingNearest2d": "jaxpar.nn.channels_first.Upsample",
    "torch.nn.UpsamplingBilinear2d": 'jaxpar.nn.channels_first.Upsample(mode="bilinear", align_corners=True)',
    "torch.nn.Linear": "flax.nnx.Linear; jaxpar.nn.channels_first.Linear with torch's arguments",
    "torch.nn.CrossEntropyLoss": "jaxpar.nn.functional.cross_entropy",
    "torch.nn.BCELoss": "jaxpar.nn.functional.binary_cross_entropy",
    "torch.nn.BCEWithLogitsLoss": "jaxpar.nn.functional.binary_cross_entropy_with_logits",
    "torch.nn.KLDivLoss": "jaxpar.nn.functional.kl_div",
    "torch.nn.functional.relu": "jax.nn.relu",
    "torch.nn.functional.softmax": "jax.nn.softmax",
    "torch.nn.functional.log_softmax": "jax.nn.log_softmax",
    "torch.nn.functional.sigmoid": "jax.nn.sigmoid",
    "torch.nn.functional.silu": "jax.nn.silu",
    "torch.nn.functional.softplus": "jax.nn.softplus",
    "torch.nn.functional.one_hot": "jax.nn.one_hot",
    "torch.nn.functional.linear": "x @ kernel + bias",
    "torch.nn.utils": "jaxpar.optim.clip_grad_norm, clip_grad_value; jaxpar.nn.WeightNorm, SpectralNorm",
    "torch.nn.init": "jaxpar.random.init",
    "torch.nn.parallel": "jaxpar.DataParallel, and scatter, replicate, parallel_apply, gather of jaxpar",
    "torch.utils.data.Sampler": "any iterable of row numbers",
    "torchvision.datasets.ImageFolder": "the same: it is a data set, which a jaxpar.data.DataLoader reads",
    "torchvision.transforms.ToTensor": "jaxpar.data.transforms.ToArray",
    "torch.distributed.init_device_mesh": "jax.make_mesh",
    "torch.distributed.send": "jax.lax.ppermute in a compiled function",
    "torch.distributed.recv": "jax.lax.ppermute in a compiled function",
    "torch.distributed.all_to_all": "jax.lax.all_to_all in a compiled function",
    "Module.state_dict": "nnx.state(net.module); jaxpar.Checkpointer saves it, "
    "jaxpar.parity.to_torch gives torch's names",
    "Module.load_state_dict": "nnx.update(net.module, state); jaxpar.parity.load_torch takes torch's tensors",
    "Module.parameters": "nnx.state(net, nnx.Param)",
    "Module.named_parameters": "nnx.to_flat_state(nnx.state(net, nnx.Param))",
    "Module.buffers": "nnx.state(net, nnx.BatchStat)",
    "Module.named_modules": "net.iter_modules()",
    "Module.modules": "net.iter_modules()",
    "Module.cuda": "jaxpar.cuda(net); a wrapped module is on its devices already",
    "Module.to": "jaxpar.to(net, device); a wrapped module is on its devices already",
    "Module.zero_grad": "nothing, as value_and_grad returns its gradients",
    "Module.requires_grad_": "nn.freeze(module) of jaxpar.nn.channels_first, or wrt= of the optimizer",
    "Module.forward": "net(...)",
    "Module.apply": "net.iter_modules() in a loop",
    "Optimizer.step": "optimizer.update(net, gradients); jaxpar.train_step does it in one compiled program",
    "Optimizer.zero_grad": "nothing, as value_and_grad returns its gradients",
    "Optimizer.state_dict": "nnx.state(optimizer); jaxpar.optim.state_to_torch gives torch's",
    "Optimizer.load_state_dict": "nnx.update(optimizer, state); jaxpar.optim.state_from_torch takes torch's",
}
"""Counterparts of torch's names. Names that differ only in case and underscores need no row."""

NAMESPACES = tuple(
    f"jaxpar{name}"
    for name in (
        "",
        ".optim",
        ".optim.lr_scheduler",
        ".optim.swa_utils",
        ".nn",
        ".nn.functional",
        ".nn.channels_first",
        ".data",
        ".data.transforms",
        ".distributed",
        ".distributions",
        ".random",
        ".comm_hooks",
    )
)


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return a package's `__getattr__`, `__dir__` and `__all__`, from the stub next to `file`.

    Its functions and classes check their arguments. A missing name raises AttributeError, or
    ImportError in `from package import name`, with its counterpart.
    """
    load, names, exported = lazy_loader.attach_stub(package, file)
    check_on_import(package, f"{file}i")

    def __getattr__(name: str) -> Any:
        if name in exported or name.startswith("_"):
            return load(name)
        text = f"module {package!r} has no attribute {name!r}{_hint(package, name, exported)}"
        caller = sys._getframe(1)
        # `from package import name` would replace an AttributeError by a text without the counterpart.
        if caller.f_code.co_code[caller.f_lasti] == opcode.opmap["IMPORT_FROM"]:
            raise ImportError(text, name=package)
        raise AttributeError(text, name=name, obj=sys.modules[package])

    return __getattr__, names, exported


class TorchNames:
    """A mixin whose missing attributes are looked up in torch's `torch_class`."""

    torch_class = "Module"

    if not TYPE_CHECKING:  # a type checker would accept every attribute

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):
                return object.__getattribute__(
                    self, name
                )  # a property has raised, and its error is the cause
            with contextlib.suppress(AttributeError):
                return super().__getattr__(name)  # Linen's
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            counterpart = COUNTERPARTS.get(f"{self.torch_class}.{name}")
            if counterpart is not None:
                text += f". Instead of torch's {name}: {counterpart}."
            elif not name.startswith("_") and hasattr(vars(self).get("module"), name):
                text += f", and the module that it wraps has: .module.{name}"
            raise AttributeError(text, name=name, obj=self)


def _hint(package: str, name: str, exported: list[str]) -> str:
    counterpart = _counterpart(package, name, exported)
    return "" if counterpart is None else f". Instead of torch's {name}: {counterpart}."


def _counterpart(package: str, name: str, exported: list[str]) -> str | None:
    for other in exported:
        if _same(other, name):
            return f"{package}.{other}"
    rows = [row for row in COUNTERPARTS if row.startswith("torch") and row.rpartition(".")[2] == name]
    # "utils" is a name of torch and of torch.nn.
    rows.sort(key=lambda row: row != f"torch{package.removeprefix('jaxpar')}.{name}")
    if rows:
        return COUNTERPARTS[rows[0]]
    for namespace in NAMESPACES:
        for other in importlib.import_module(namespace).__all__:
            if _same(other, name):
                return f"{namespace}.{other}"
    # Of MaxUnpool2d and its like the layers of jaxpar.nn have all sizes.
    without_size = re.sub("[123]d$", "", name)
    return None if without_size == name else _counterpart(package, without_size, exported)


def _same(one: str, other: str) -> bool:
    return one.replace("_", "").lower() == other.replace("_", "").lower()
