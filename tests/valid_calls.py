"""A valid call of every public function and class, of which tests change one argument."""

from __future__ import annotations

import functools
import importlib
import inspect
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from flax import nnx

import jaxpar
from jaxpar import comm_hooks, distributions, nn, optim, parity
from jaxpar.optim import lr_scheduler
from jaxpar.parity import recorder

PACKAGE = Path(jaxpar.__file__).parent
NAMESPACES = sorted(
    ".".join(("jaxpar", *stub.parent.relative_to(PACKAGE).parts)) for stub in PACKAGE.rglob("__init__.pyi")
)


def public() -> dict[str, Any]:
    """Every function and class of every `__all__`, once, by its first name; no plain data, no enumeration."""
    # Bases of other classes, objects that an optimizer makes, and what ends or needs a fresh process.
    left_out = {
        "Curve",
        "TrainStep",
        "Profile",
        "Distribution",
        "LRScheduler",
        "ParamGroup",
        "state_from_torch",
        "state_to_torch",
    }
    names: dict[str, Any] = {}
    for namespace in NAMESPACES:
        module = importlib.import_module(namespace)
        for name in module.__all__:
            value = getattr(module, name)
            known = any(value is other for other in names.values())
            if callable(value) and not inspect.ismodule(value) and not known and name not in left_out:
                if is_made_by_jaxpar(value):
                    continue
                names[f"{namespace}.{name}"] = value
    return names


def is_made_by_jaxpar(value: Any) -> bool:
    attributes = {name for base in getattr(value, "__mro__", ()) for name in vars(base)}
    return "__members__" in dir(value) or (
        ("_fields" in attributes or "__dataclass_fields__" in attributes)
        and not attributes & {"__post_init__", "__call__"}
    )


def series(*shape: int) -> jax.Array:
    return jnp.linspace(0.1, 0.9, int(np.prod(shape))).reshape(shape)


def net() -> nnx.Module:
    return nnx.Linear(2, 1, rngs=nnx.Rngs(0))


def optimizer() -> optim.Optimizer:
    return optim.Optimizer(net(), optim.sgd(lr=0.1, momentum=0.9))


def loss(net, x):
    return net(x).mean()


def rngs() -> nnx.Rngs:
    return nnx.Rngs(0)


X = series(2, 4, 6)
BY_AXES = {"1d": X, "2d": series(2, 4, 6, 6), "3d": series(2, 4, 6, 6, 6)}
HALF = series(2, 4) * 0 + 0.5

# The values of arguments without a default, by name; a function makes a value anew.
VALUES: dict[str, Any] = {
    "x": lambda: X,
    "kernel_size": 2,
    "padding": 1,
    "input": lambda: series(2, 4),
    "target": lambda: series(2, 4),
    "rngs": rngs,
    "optimizer": optimizer,
    "output_size": 2,
    "value": 0.5,
    "module": net,
    "num_features": 4,
    "lr": 0.1,
    "in_channels": 4,
    "out_channels": 4,
    "size": 3,
    "dim": 1,
    "num_groups": 2,
    "net": net,
    "num_channels": 4,
    "normalized_shape": 6,
    "x1": lambda: X,
    "x2": lambda: X,
    "groups": 2,
    "embedding": lambda: series(5, 3),
    "max_lr": 0.2,
    "base_lr": 0.1,
    "lr_lambda": lambda: lambda step: 0.9,
    "milestones": lambda: [2, 4],
    "loss_fn": lambda: loss,
    "upscale_factor": 2,
    "downscale_factor": 2,
    "out_features": 3,
    "in_features": 2,
    "in1_features": 2,
    "in2_features": 3,
    "d_model": 4,
    "nhead": 2,
    "num_layers": 2,
    "input_size": 3,
    "hidden_size": 4,
    "embed_dim": 4,
    "num_heads": 2,
    "num_embeddings": 5,
    "embeddings": lambda: jnp.ones((5, 3)),
    "embedding_dim": 3,
    "negative_slope": lambda: jnp.array(0.25),
    "threshold": 0.5,
    "T_max": 5,
    "T_0": 5,
    "step_size": 3,
    "gamma": 0.5,
    "total_steps": 9,
    "generator": lambda: jaxpar.random.Generator(0),
    "seed": 0,
    "n": 6,
    "num_replicas": 2,
    "rank": 0,
    "dataset": lambda: np.arange(6.0),
    "data_source": lambda: np.arange(6.0),
    "indices": lambda: [0, 2],
    "num_samples": 3,
    "batch_size": 2,
    "drop_last": False,
    "sampler": lambda: [0, 1, 2],
    "datasets": lambda: [np.arange(3.0), np.arange(2.0)],
    "weights": lambda: [0.5, 0.5],
    "lengths": lambda: [4, 2],
    "batch": lambda: [np.arange(2.0), np.arange(2.0)],
    "data": lambda: np.arange(2.0),
    "iterable": lambda: [np.arange(2.0)],
    "mean": lambda: [0.5],
    "std": lambda: [0.5],
    "transforms": lambda: [abs],
    "loc": 0.0,
    "scale": 1.0,
    "p": lambda: distributions.Normal(0.0, 1.0),
    "base_distribution": lambda: distributions.Normal(jnp.zeros((2, 3)), 1.0),
    "reinterpreted_batch_ndims": 1,
    "q": lambda: distributions.Normal(0.0, 1.0),
    "hook": lambda: comm_hooks.mean,
    "tx": lambda: optax.sgd(0.1),
    "torch_loop": lambda: lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "jax_loop": lambda: optax.sgd(0.1),
    "function": lambda: abs,
    "inputs": lambda: series(4, 2),
    "tree": lambda: {"x": X},
    "device": 0,
    "devices": lambda: [0],
    "device_ids": lambda: [0],
    "target_gpus": lambda: [0],
    "kwargs": dict,
    "outputs": lambda: [jnp.ones(2)],
    "network": net,
    "clip_value": 0.5,
    "max_norm": 0.5,
    "layer": net,
    "model": net,
    "iterable_or_total": 3,
    "card": "h100",
    "step": 3,
    "swa_lr": 0.05,
    "flax_module": net,
    "torch_module": lambda: torch.nn.Linear(2, 1),
    "trace": lambda: trace(),
    "path": lambda: f"{folder()}/file.npz",
    "tensors": lambda: {"weight": np.ones(2)},
    "comparison": None,
    "axis": 0,
    "name": "weight",
    "names": lambda: ["first", "second"],
    "shape": lambda: (2, 3),
    "axes": lambda: (1, 0),
    "entries": dict,
    "object_list": lambda: [1],
    "scatter_object_output_list": lambda: [None],
    "obj": 1,
    "group": None,
    "group_rank": 0,
    "global_rank": 0,
    "decay": 0.9,
}


def stack(layer: Callable[..., nnx.Module]) -> dict[str, Any]:
    made = layer(3, 4, rngs=rngs())
    params = {name: value[...] for name, value in vars(made).items() if isinstance(value, nnx.Param)}
    return {"input": series(5, 2, 3), "hx": None, "params": params}


def attention() -> dict[str, Any]:
    layer = nn.MultiheadAttention(4, 2, rngs=rngs())
    params = {name: value[...] for name, value in vars(layer).items() if isinstance(value, nnx.Param)}
    return {
        **params,
        "out_proj_weight": layer.out_proj.kernel[...],
        "out_proj_bias": layer.out_proj.bias[...],
    }


def folder() -> str:
    return tempfile.mkdtemp()


@functools.cache
def trace() -> str:
    """A trace of the model that `torch_module` is."""
    return str(recorder.record(folder(), torch.nn.Linear(2, 1), np.ones((4, 2), np.float32)))


@functools.cache
def taps() -> str:
    """The taps of a training of two steps."""
    with parity.Tap(path := folder()) as tap:
        for step in range(2):
            tap(step, loss=1.0)
    return path


def sequence(scheduler: Callable[..., Any]) -> dict[str, Any]:
    shared = optimizer()
    return {
        "optimizer": shared,
        "schedulers": [scheduler(shared, 3), scheduler(shared, 3)],
        "milestones": [2],
    }


SIGNS = jnp.array([1, -1])
CLASSES = jnp.array([0, 3])
CELL = {"input": series(2, 3), "hx": HALF, "weight_ih": series(3, 4), "weight_hh": series(4, 4)}
IMAGES = series(2, 4, 4, 4)

# Arguments of a function that differ from those of its name above.
CALLS: dict[str, dict[str, Any]] = {
    "jaxpar.nn.Conv": {"kernel_size": (2,)},
    "affine_grid": {"theta": series(2, 2, 3), "size": (2, 4, 3, 3)},
    "batch_norm": {"running_mean": jnp.zeros(6), "running_var": jnp.ones(6)},
    "bilinear": {"x1": series(2, 3), "x2": series(2, 4), "kernel": series(5, 3, 4)},
    "binary_cross_entropy": {"input": HALF, "target": HALF},
    "dropout": {"training": False},
    "sliding_windows": {"dim": 1, "size": 2, "step": 1},
    "feature_dropout": {"training": False},
    "jaxpar.nn.channels_first.functional.bilinear": {
        "x1": series(2, 3),
        "x2": series(2, 4),
        "kernel": series(3, 4, 5),
    },
    "jaxpar.nn.channels_first.functional.nll_loss": {"x": series(2, 4), "target": CLASSES},
    "jaxpar.nn.functional.fold": {"x": series(2, 4, 16), "output_size": (3, 3), "kernel_size": (2, 2)},
    "jaxpar.nn.functional.conv": {"kernel": series(2, 6, 3)},
    "jaxpar.nn.functional.conv_transpose": {"kernel": series(2, 3, 6)},
    "conv1d": {"weight": series(4, 4, 2)},
    "conv2d": {"weight": series(4, 4, 2, 2)},
    "conv3d": {"weight": series(4, 4, 2, 2, 2)},
    "conv_transpose1d": {"weight": series(4, 4, 2)},
    "conv_transpose2d": {"weight": series(4, 4, 2, 2)},
    "conv_transpose3d": {"weight": series(4, 4, 2, 2, 2)},
    "jaxpar.nn.channels_last.functional.conv2d": {"x": IMAGES, "weight": series(4, 4, 2, 2)},
    "jaxpar.nn.channels_last.functional.conv_transpose2d": {"x": IMAGES, "weight": series(4, 4, 2, 2)},
    "cosine_embedding_loss": {"input1": series(2, 4), "input2": series(2, 4), "target": SIGNS},
    "ctc_loss": {
        "log_probs": jax.nn.log_softmax(series(5, 2, 4)),
        "targets": jnp.ones((2, 2), int),
        "input_lengths": jnp.array([5, 5]),
        "target_lengths": jnp.array([2, 2]),
    },
    "jaxpar.nn.channels_first.functional.multi_head_attention_forward": {
        **{name: series(3, 2, 4) for name in ("query", "key", "value")},
        "embed_dim_to_check": 4,
        "in_proj_weight": series(12, 4),
        "in_proj_bias": None,
        "bias_k": None,
        "bias_v": None,
        "add_zero_attn": False,
        "dropout_p": 0.0,
        "out_proj_weight": series(4, 4),
        "out_proj_bias": None,
    },
    "embedding": {"x": CLASSES},
    "embedding_bag": {"x": jnp.ones((2, 2), int)},
    "embedding_renorm": {"x": CLASSES},
    "fold": {"x": series(2, 16, 4), "output_size": (3, 3), "kernel_size": (2, 2)},
    "unfold": {"x": IMAGES, "kernel_size": (2, 2)},
    "gaussian_nll_loss": {"var": HALF},
    "grid_sample": {"x": IMAGES, "grid": series(2, 3, 3, 2)},
    "gru": stack(nn.GRU),
    "lstm": stack(nn.LSTM),
    "rnn_relu": stack(nn.RNN),
    "rnn_tanh": stack(nn.RNN),
    "gru_cell": {**CELL, "weight_ih": series(3, 12), "weight_hh": series(4, 12)},
    "lstm_cell": {**CELL, "hx": (HALF, HALF), "weight_ih": series(3, 16), "weight_hh": series(4, 16)},
    "rnn_relu_cell": CELL,
    "rnn_tanh_cell": CELL,
    "interpolate": {"scale_factor": 2.0},
    "lp_pool": {"norm_type": 2.0},
    "LPPool": {"norm_type": 2.0},
    "margin_ranking_loss": {"input1": series(2), "input2": series(2), "target": SIGNS},
    "max_unpool": {"x": series(2, 2, 6), "indices": jnp.zeros((2, 2, 6), int), "kernel_size": (2,)},
    "multi_margin_loss": {"target": CLASSES},
    "multilabel_margin_loss": {"target": jnp.zeros((2, 4), int)},
    "nll_loss": {"target": CLASSES},
    "pad": {"pad": (1, 1)},
    "pixel_shuffle": {"x": IMAGES},
    "pixel_unshuffle": {"x": IMAGES},
    "scaled_dot_product_attention": {name: series(2, 3, 4) for name in ("query", "key", "value")},
    "spectral_norm": {"kernel": series(3, 2), "u": jnp.ones(2), "v": jnp.ones(3)},
    "weight_norm": {"kernel": series(3, 2), "scale": jnp.ones((1, 2))},
    "triplet_margin_loss": {name: series(2, 4) for name in ("anchor", "positive", "negative")},
    "triplet_margin_with_distance_loss": {name: series(2, 4) for name in ("anchor", "positive", "negative")},
    "atan2": {"other": X},
    "div": {"other": X},
    "pow": {"exponent": 2.0},
    "chunk": {"chunks": 2},
    "split": {"split_size_or_sections": 1},
    "expand": {"x": X, "*": (2, 4, 6)},
    "kthvalue": {"k": 1},
    "topk": {"k": 1},
    "jaxpar.nn.channels_first.functional.scatter": {"index": jnp.zeros((2, 4, 6), int), "src": X},
    "linear_loss": {"parameters": {"w": X}, "batch": {"w": X}},
    "scatter_reduce": {"index": jnp.zeros((2, 4, 6), int), "src": X, "reduce": "amax"},
    "scatter_add": {"index": jnp.zeros((2, 4, 6), int), "src": X},
    "searchsorted": {"sorted_sequence": jnp.arange(4.0), "values": 2.0},
    "linspace": {"start": 0.0, "end": 1.0, "steps": 3},
    "unflatten": {"sizes": (2, 2)},
    "Unflatten": {"unflattened_size": (2, 2)},
    "prelu": {"weight": jnp.array([0.25])},
    "sizes": {"axes": 2},
    "TiedLinear": lambda: {
        "linear": nnx.Linear(3, 5, rngs=rngs()),
        "embedding": nn.Embedding(5, 3, rngs=rngs()),
    },
    "Upsample": {"size": 4},
    "Transformer": {"d_model": 4, "num_encoder_layers": 1, "num_decoder_layers": 1, "dim_feedforward": 8},
    "TransformerEncoder": lambda: {"encoder_layer": nn.TransformerEncoderLayer(4, 2, 8, rngs=rngs())},
    "TransformerDecoder": lambda: {"decoder_layer": nn.TransformerDecoderLayer(4, 2, 8, rngs=rngs())},
    "cross_entropy": {"x": series(2, 4)},
    "compare": {"inputs": (np.ones((4, 2), np.float32),)},
    "record": {"inputs": (np.ones((4, 2), np.float32),)},
    "record_jax": lambda: {"folder": folder(), "inputs": (np.ones((4, 2), np.float32),)},
    "against_jax": lambda: {"trace": str(parity.record_jax(folder(), net(), np.ones((4, 2), np.float32)))},
    "get_total_norm": {"tensors": [X]},
    "multi_head_attention_forward": lambda: {
        **{name: series(3, 2, 4) for name in ("query", "key", "value")},
        "params": attention(),
    },
    "Profile": lambda: {"directory": folder(), "wait": 1, "active": 1},
    "Checkpointer": lambda: {"directory": folder()},
    "MetricsLog": lambda: {"directory": folder()},
    "Tap": lambda: {"folder": folder()},
    "bisect": lambda: {"a": taps(), "b": taps()},
    "Hardware": lambda: {
        name: {"float32": 1e12} if name == "flops" else "card" if name == "name" else 1e9
        for name in ("name", "flops", "bandwidth", "memory", "link", "network", "latency")
    },
    "OnDevice": lambda: {"*": (net(), jax.devices()[0])},
    "Placement": lambda: {"devices": tuple(jax.devices()[:2])},
    "TrainStep": {"accumulate": 1, "has_aux": False, "precision": None, "on_nonfinite": "raise"},
    "estimate": lambda: {"*": (series(4, 2),), "device": "h100", "optimizer": optax.sgd(0.1)},
    "load_unwrapped_state": lambda: {"source": jaxpar.unwrapped_state(net()), "target": net()},
    "unwrapped_state": lambda: {"target": net()},
    "parallel_apply": lambda: {"modules": list(jaxpar.replicate(net(), [0, 1])), "inputs": [HALF[:, :2]] * 2},
    "StackDataset": lambda: {"*": (np.arange(3.0),)},
    "TensorDataset": lambda: {"*": (np.arange(3.0),)},
    "DistributedSampler": {"num_replicas": 2, "rank": 0},
    "EvaluationSampler": {"num_replicas": 2, "rank": 0},
    "Bernoulli": {"probs": 0.5},
    "Categorical": {"probs": series(4)},
    "Distribution": {"parameters": {"loc": X}, "validate_args": True},
    "optim.Optimizer": {},
    "jaxpar.optim.Optimizer": lambda: {"*": (net(), optim.sgd(lr=0.1))},
    "param_groups": lambda: {"optimizer": optim.sgd, "groups": [{"params": ..., "lr": 0.1}]},
    "state_from_torch": lambda: {"params": {}, "state_dict": {"state": {}, "param_groups": []}},
    "state_to_torch": lambda: {"state": {}, "like": {"state": {}, "param_groups": []}},
    "Schedule": lambda: {"rate": lambda step: 0.1, "advance": lambda *_: 0.1},
    "SequentialLR": lambda: sequence(lr_scheduler.StepLR),
    "sequential_lr": {"schedulers": [lr_scheduler.step_lr(0.1, 3)] * 2, "milestones": [2]},
    "chained_scheduler": {"schedulers": [lr_scheduler.step_lr(0.1, 3)] * 2},
    "AveragedModel": lambda: {"*": (net(),)},
    "update_bn": lambda: {"loader": [HALF], "model": nn.BatchNorm(4)},
    "initialise": {"rows": [], "source": 0},
    "multinomial": {"input": HALF},
    "OneCycleLR": {"total_steps": 9},
    "one_cycle_lr": {"total_steps": 9},
    "ChainedScheduler": lambda: {"schedulers": [lr_scheduler.StepLR(optimizer(), 3)]},
}


def valid_call(name: str, function: Any) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call that returns: by position where there are no names, and by name."""
    short = name.rpartition(".")[2]
    without_axes = short[:-2] if short[-2:] in BY_AXES else short
    special = next((CALLS[key] for key in (name, short, without_axes) if key in CALLS), {})
    special = special() if callable(special) else special
    named = {}
    parameters = inspect.signature(function).parameters.values()
    for parameter in parameters:
        required = parameter.default is parameter.empty and parameter.kind not in (2, 4)
        if parameter.name in special:
            named[parameter.name] = special[parameter.name]
        elif parameter.name == "x" and required and short[-2:] in BY_AXES:
            named["x"] = BY_AXES[short[-2:]]
        elif required:
            value = VALUES[parameter.name]
            named[parameter.name] = value() if callable(value) else value
    rest = list(special.get("*", ()))
    leading = [p.name for p in parameters if rest and p.kind == 1 and p.name in named]
    before = [p.name for p in parameters if p.kind == 0 and p.name in named] or leading
    return [*(named.pop(name) for name in before), *rest], named
