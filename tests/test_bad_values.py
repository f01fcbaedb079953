"""Values that are refused when an object is made, or a function is called, and by which error.

The class is torch's where torch refuses the value; where torch trains on with NaN, it is a ValueError.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from valid_calls import X, net, optimizer, rngs

import jaxpar
from jaxpar import data, nn, optim, parity
from jaxpar.errors import DeviceError
from jaxpar.nn import channels_first
from jaxpar.nn import functional as F
from jaxpar.optim import lr_scheduler, swa_utils

NAN, INF = float("nan"), float("inf")
CLASSES, TARGET = jnp.full((3, 2), 0.5), jnp.array([0, 1, 0])


def stepped(scheduler: str, *args: Any, **kwargs: Any) -> Callable[[], Any]:
    return lambda: getattr(lr_scheduler, scheduler)(optimizer(), *args, **kwargs)


# A call, the class of its error (torch's where torch refuses), and how its text begins.
REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (stepped("StepLR", 3, NAN), ValueError, "StepLR: gamma is nan; it must be finite and 0 or more."),
    (stepped("ExponentialLR", NAN), ValueError, "ExponentialLR: gamma is nan"),
    (stepped("ReduceLROnPlateau", factor=NAN), ValueError, "ReduceLROnPlateau: factor is nan"),
    (stepped("ReduceLROnPlateau", patience=-1), ValueError, "ReduceLROnPlateau: patience is -1"),
    (stepped("ConstantLR", NAN), ValueError, "Constant multiplicative factor expected"),
    (stepped("LinearLR", NAN), ValueError, "Starting multiplicative factor expected"),
    (stepped("LinearLR", end_factor=NAN), ValueError, "Ending multiplicative factor expected"),
    (stepped("CosineAnnealingLR", 5, NAN), ValueError, "CosineAnnealingLR: eta_min is nan"),
    (stepped("CyclicLR", [0.1], [NAN]), ValueError, "CyclicLR: max_lr is [nan]"),
    (stepped("OneCycleLR", 0.1, 9, pct_start=NAN), ValueError, "Expected float between 0 and 1 pct_start"),
    (lambda: swa_utils.SWALR(optimizer(), -1), ValueError, "SWALR: swa_lr is -1"),
    (lambda: lr_scheduler.step_lr(0.1, 3, NAN), ValueError, "step_lr: gamma is nan"),
    (lambda: lr_scheduler.step_lr(INF, 3), ValueError, "step_lr: lr is inf"),
    (lambda: lr_scheduler.exponential_lr(0.1, -1.0), ValueError, "exponential_lr: gamma is -1.0"),
    (lambda: lr_scheduler.multi_step_lr(0.1, [2, -1]), ValueError, "multi_step_lr: milestones is [2, -1]"),
    (lambda: F.threshold(X, NAN, 0.0), ValueError, "threshold: threshold is nan; it must be a number."),
    (lambda: nn.LayerNorm(4, eps=NAN), ValueError, "LayerNorm: eps is nan"),
    (lambda: nn.BatchNorm(4, momentum=NAN), ValueError, "BatchNorm: momentum is nan"),
    (lambda: nn.RMSNorm(4, eps=-1.0), ValueError, "RMSNorm: eps is -1.0"),
    (lambda: F.group_norm(X, 2, eps=np.float32(NAN)), ValueError, "group_norm: eps is"),
    (lambda: optim.clip_grad_norm(NAN), ValueError, "clip_grad_norm: max_norm is nan; it must be 0 or more."),
    (lambda: optim.clip_grad_norm(-1.0), ValueError, "clip_grad_norm: max_norm is -1.0"),
    (lambda: optim.clip_grad_value(-1.0), ValueError, "clip_grad_value: clip_value is -1.0"),
    (lambda: optim.adam(lr=INF), ValueError, "adam: lr is inf; it must be finite."),
    (lambda: optim.adam(lr=np.float64(INF)), ValueError, "adam: lr is"),
    (lambda: optim.adam(lr=np.float32(INF)), ValueError, "adam: lr is"),
    (lambda: optim.adamw(weight_decay=INF), ValueError, "adamw: weight_decay is inf"),
    (lambda: optim.sgd(lr=NAN), ValueError, "Invalid learning rate: nan"),
    (lambda: optim.rprop(step_sizes=(NAN, 50)), ValueError, "rprop: step_sizes is (nan, 50)"),
    (lambda: optim.adam(betas=(0.9, NAN)), ValueError, "Invalid beta parameter at index 1: nan"),
    (
        lambda: jaxpar.DistributedDataParallel(net(), bucket_cap_mb=NAN),
        ValueError,
        "DistributedDataParallel: ",
    ),
    (
        lambda: jaxpar.DistributedDataParallel(net(), bucket_cap_mb=-1),
        ValueError,
        "DistributedDataParallel: ",
    ),
    (lambda: jaxpar.beat(-1), ValueError, "beat: step is -1; it must be 0 or more."),
    *(
        (lambda weights=weights: data.WeightedRandomSampler(weights, 3), RuntimeError, "invalid multinomial")
        for weights in ([NAN, 1.0], [-1.0, 2.0], [INF, 1.0], [0.0, 0.0], [])
    ),
    (lambda: jaxpar.profile(abs, "a\0"), ValueError, "profile: directory is 'a\\x00'; it must be a path"),
    (lambda: jaxpar.MetricsLog("a\0"), ValueError, "MetricsLog: directory is 'a\\x00'"),
    (lambda: parity.read_weights(Path("a\0")), ValueError, "read_weights: path is PosixPath('a\\x00')"),
    (
        lambda: nn.Conv(-1, 4, (2,), rngs=rngs()),
        RuntimeError,
        "Conv: in_channels is -1; it must be 0 or",
    ),
    (lambda: nn.Conv(4, 4, (0,), rngs=rngs()), RuntimeError, "non-positive kernel_size"),
    (lambda: nn.ConvTranspose(4, -1, (2,), rngs=rngs()), RuntimeError, "ConvTranspose: out_channels is -1"),
    (lambda: channels_first.Linear(-1, 4, rngs=rngs()), RuntimeError, "Linear: in_features is -1"),
    (lambda: nn.Embedding(4, -1, rngs=rngs()), RuntimeError, "Embedding: embedding_dim is -1"),
    (lambda: nn.LayerNorm(-1), RuntimeError, "LayerNorm: normalized_shape is -1"),
    (lambda: nn.LayerNorm([2, -1]), RuntimeError, "LayerNorm: normalized_shape is [2, -1]"),
    (lambda: channels_first.PReLU(-1), RuntimeError, "PReLU: num_parameters is -1"),
    (
        lambda: nn.MultiheadAttention(4, 2, kdim=-1, rngs=rngs()),
        RuntimeError,
        "MultiheadAttention: kdim is -1",
    ),
    (lambda: jaxpar.DataParallel(net(), [99]), DeviceError, "device: device id 99 is out of range"),
    (lambda: jaxpar.DataParallel(net(), [0, 0]), DeviceError, "DataParallel: 0 given twice"),
    (lambda: jaxpar.DataParallel(net(), dim=99), IndexError, "DataParallel: Dimension out of range"),
    (lambda: jaxpar.replicate(net(), []), DeviceError, "replicate: device_ids is empty"),
    (
        lambda: stepped("StepLR", 3)().load_state_dict(None),
        TypeError,
        "StepLR.load_state_dict: state_dict is None",
    ),
    (lambda: F.interpolate(X, scale_factor=NAN), RuntimeError, "interpolate: scale_factor is nan"),
    (lambda: nn.Upsample(scale_factor=-1.0), RuntimeError, "Upsample: scale_factor is -1.0"),
    (lambda: channels_first.functional.kthvalue(X, -1), RuntimeError, "kthvalue: k is -1"),
    (lambda: channels_first.functional.cdist(X, X, p=-1.0), RuntimeError, "cdist: p is -1.0"),
    (lambda: F.cross_entropy(CLASSES, TARGET, jnp.array([1.0, NAN])), ValueError, "cross_entropy: weight is"),
    (lambda: F.nll_loss(CLASSES, TARGET, jnp.array([1.0, INF])), ValueError, "nll_loss: weight is"),
    (
        lambda: F.cross_entropy(CLASSES, TARGET, label_smoothing=jnp.array(NAN)),
        RuntimeError,
        "label_smoothing must be between 0.0 and 1.0. Got: nan",
    ),
    (
        lambda: F.binary_cross_entropy_with_logits(CLASSES, CLASSES, pos_weight=jnp.array([NAN])),
        ValueError,
        "binary_cross_entropy_with_logits: pos_weight is float64[1]; it must be finite.",
    ),
    (
        lambda: F.multi_margin_loss(CLASSES, TARGET, weight=np.array([1, NAN])),
        ValueError,
        "multi_margin_loss: weight is",
    ),
    (lambda: optim.adam(lr=jnp.array(NAN)), ValueError, "adam: lr is"),
    (lambda: optim.adam(lr=jnp.array(INF, jnp.bfloat16)), ValueError, "adam: lr is"),
    (lambda: optim.sgd(momentum=jnp.array(NAN)), ValueError, "sgd: momentum is"),
    (lambda: optim.adamw(weight_decay=jnp.array(INF)), ValueError, "adamw: weight_decay is"),
    (lambda: lr_scheduler.step_lr(jnp.array(NAN), 3), ValueError, "step_lr: lr is"),
    (lambda: nn.BatchNorm(4, momentum=jnp.array(NAN)), ValueError, "BatchNorm: momentum is"),
    (lambda: jaxpar.Checkpointer("run", save_every=True), TypeError, "Checkpointer: save_every is True"),
]


@pytest.mark.parametrize("row", REFUSED, ids=[row[2].split(";")[0] for row in REFUSED])
def test_it_is_refused_at_construction(row):
    call, kind, text = row
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    assert str(caught.value).startswith(text)


def test_a_traced_value_is_not_read():
    loss = jax.jit(lambda x, weight: F.cross_entropy(x, TARGET, weight))
    assert jnp.isnan(loss(CLASSES, jnp.array([1.0, NAN])))
    with pytest.raises(IndexError, match="Target 1 is out of bounds"):
        jax.jit(lambda x: F.nll_loss(x, TARGET))(CLASSES[:, :1])

    def update(lr):
        tx = optim.sgd(lr=lr)
        return tx.update(CLASSES, tx.init(CLASSES))[0]

    assert jnp.isnan(jax.jit(update)(jnp.array(NAN))).all()


def test_layers_without_elements_warn_as_torchs():
    for make in (
        lambda: channels_first.Linear(0, 4, rngs=rngs()),
        lambda: channels_first.Conv2d(4, 0, 2, rngs=rngs()),
        lambda: torch.nn.Linear(0, 4),
        lambda: torch.nn.Conv2d(4, 0, 2),
    ):
        with pytest.warns(UserWarning, match=r"^Initializing zero-element tensors is a no-op$") as caught:
            make()
        assert len(caught) == 1
        assert caught[0].filename == __file__ or "torch" in caught[0].filename
