"""The loss scale of `train_step`, against torch.amp.GradScaler, and the gradients that it leaves alone."""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx

import jaxpar
from jaxpar import errors

X = np.random.RandomState(0).randn(4, 3)
GOOD, BAD = X, np.where(np.arange(12).reshape(4, 3) == 5, np.nan, X)


def square(net, x):
    return (net(x) ** 2).mean()


def made(**options):
    net = nnx.Linear(3, 2, rngs=nnx.Rngs(0), param_dtype=jnp.float64)
    optimizer = nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)
    return net, jaxpar.train_step(net, optimizer, square, **options)


def test_the_scale_is_divided_out_of_the_gradients():
    scaled, step = made(precision=jaxpar.Precision("float64", loss_scale=1024.0))
    plain, other = made()
    for _ in range(3):
        assert float(step(X)) == float(other(X))
    np.testing.assert_array_equal(scaled.kernel[...], plain.kernel[...])  # a power of two rounds nothing


def torchs_scales(words, interval):
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=interval)
    weight = torch.nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for good in words:
        optimizer.zero_grad()
        scaler.scale(weight * (1.0 if good else float("nan"))).backward()
        scaler.step(optimizer)
        scaler.update()
        yield scaler.get_scale(), scaler._get_growth_tracker()


@pytest.mark.parametrize("interval", [1, 2, 3])
def test_the_scale_and_its_counter_are_torchs_after_every_step(interval):
    words = list(itertools.chain.from_iterable(itertools.product([True, False], repeat=4))) + [True] * 7
    words = words[::2] + words  # runs of every length up to 8, ended by a bad step and by growth
    _, step = made(precision=jaxpar.Precision("float64", loss_scale=4.0, growth_interval=interval))
    for good, want in zip(words, torchs_scales(words, interval), strict=True):
        step(GOOD if good else BAD)
        state = step.state_dict()["step"]
        assert (float(state["scale"]), int(state["good"])) == want


def test_nothing_moves_between_the_trouble_and_its_report():
    """The report is read some steps later, and by then good batches have come."""
    net, step = made()
    step(GOOD)
    before = np.asarray(net.kernel[...])

    def go_on():
        for x in (BAD, GOOD, GOOD):
            step(x)
        step.check()

    with pytest.raises(errors.NonFiniteError, match=r"at update 1 \(from 0\)"):
        go_on()
    np.testing.assert_array_equal(net.kernel[...], before)
