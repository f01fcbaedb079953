"""What users get wrong when they move a loop to train_step, and the cure that the error names."""

from __future__ import annotations

import re

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState

import jaxpar
from jaxpar.errors import LossError, NoRowsError, RowsError, UninitializedError

X, Y = np.ones((8, 3)), np.ones((8, 1))
TX = optax.adam(0.1)


def params():
    return {"w": jnp.ones((3, 1)), "b": jnp.zeros(1)}


def predict(params, x):
    return x @ params["w"] + params["b"]


def mse(net, x, y):
    return ((net(x) - y) ** 2).mean()


def of_params(params, x, y):
    return ((predict(params, x) - y) ** 2).mean()


def pmean_over(axis):
    return lambda net, x, y: jax.lax.pmean(mse(net, x, y), axis)


def ddp(net):
    return jaxpar.DistributedDataParallel(net, [0, 1])


def of_function(loss_fn=mse, state=None, **options):
    return jaxpar.train_step(ddp(predict), (params(), TX) if state is None else state, loss_fn, **options)


def of_module(loss_fn, wrap):
    net = wrap(nnx.Linear(3, 1, rngs=nnx.Rngs(0)))
    return jaxpar.train_step(net, nnx.Optimizer(net, TX, wrt=nnx.Param), loss_fn)


def data_parallel(net):
    return jaxpar.DataParallel(net, [0, 1])


def linen_state(net):
    return TrainState.create(apply_fn=net.apply, params=net.init(jax.random.key(0), X)["params"], tx=TX)


def of_linen(loss_fn, net):
    return jaxpar.train_step(net, linen_state(net), loss_fn)


LINEN = data_parallel(linen.Dense(1))
NO_PMEAN = r'a loss needs no pmean.* jax\.lax\.pmean\(x, "replica"\)'
REFUSED = {
    "a_loss_of_params": (
        lambda: of_function(of_params)(X, Y),
        TypeError,
        r"net\['w'\]: .* write net\(x\) for function\(params, x\); the parameters are net\.params",
    ),
    "a_loss_over_params": (
        lambda: of_function(lambda net, x, y: sum(p.sum() for p in net))(X, Y),
        TypeError,
        r"iter\(net\): .* the parameters are net\.params",
    ),
    "an_attribute_of_params": (
        lambda: of_function(lambda net, x, y: (x @ net.w).mean())(X, Y),
        AttributeError,
        r"w: .* the parameters are net\.params",
    ),
    "params_in_the_batch": (
        lambda: of_function()(params(), X, Y),
        RowsError,
        r"The step holds the parameters: call step\(\*batch\) without them",
    ),
    "a_state_in_the_batch": (
        lambda: of_linen(mse, LINEN)(linen_state(LINEN), X, Y),
        TypeError,
        r"The step holds the state: call step\(\*batch\) without it, and read step\.state",
    ),
    "a_function_state_in_the_batch": (
        lambda: of_function(mse)(jaxpar.FunctionState.create(params(), TX), X, Y),
        NoRowsError,
        r"The step holds the state: call step\(\*batch\) without it",
    ),
    "a_net_in_the_batch": (
        lambda: of_module(mse, data_parallel)(nnx.Linear(3, 1, rngs=nnx.Rngs(0)), X, Y),
        TypeError,
        r"train_step was called with \(Linear\(",
    ),
    "a_linen_loss_of_params": (
        lambda: of_linen(lambda params, x, y: LINEN.apply({"params": params}, x).mean(), LINEN)(X, Y),
        TypeError,
        r"variables\['params'\] is the net .* write net\(x\) there; the variables are net\.variables",
    ),
    "no_transformation": (
        lambda: of_function(state=(params(), 0.1)),
        TypeError,
        r"\(params, tx\).* not \(dict, float\)",
    ),
    "params_alone": (lambda: of_function(state=params()), TypeError, r"\(params, tx\).* not dict"),
    "params_for_a_net": (
        lambda: jaxpar.train_step(params(), TX, mse),
        TypeError,
        r"not dict\. .*train_step\(function, \(params, tx\), loss_fn\)",
    ),
    "tx_for_an_optimizer": (
        lambda: jaxpar.train_step(nnx.Linear(3, 1, rngs=nnx.Rngs(0)), TX, mse),
        TypeError,
        r"not GradientTransformationExtraArgs: nnx\.Optimizer\(net, tx, wrt=nnx\.Param\)",
    ),
    "aux_that_is_missing": (
        lambda: of_function(has_aux=True)(X, Y),
        LossError,
        r"returns \(loss, aux\), not float64\[\]",
    ),
    "pmean_over_batch": (lambda: of_module(pmean_over("batch"), ddp)(X, Y), NameError, NO_PMEAN),
    "pmean_in_DataParallel": (
        lambda: of_module(pmean_over("replica"), data_parallel)(X, Y),
        NameError,
        NO_PMEAN,
    ),
    "linen_without_variables": (
        lambda: jaxpar.DataParallel(linen.Dense(1), [0, 1])(X),
        UninitializedError,
        r"Dense has no variables\. Bind them",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_cure_is_named(case):
    use, error, text = REFUSED[case]
    with pytest.raises(error) as raised:
        use()
    message = "\n".join([str(raised.value), *getattr(raised.value, "__notes__", [])])
    assert re.search(text, message, re.DOTALL), message


def test_other_errors_get_no_note():
    def loss_fn(net, x, y):
        return undefined  # noqa: F821

    with pytest.raises(NameError) as raised:
        of_function(loss_fn)(X, Y)
    assert not any("pmean" in note for note in raised.value.__notes__)
    with pytest.raises(RowsError) as raised:
        of_function()(X, Y[:5])
    assert not any("parameters" in note for note in getattr(raised.value, "__notes__", []))


@pytest.mark.full
def test_pmean_over_replicas_is_right():
    assert of_module(pmean_over("replica"), ddp)(X, Y) == of_module(mse, ddp)(X, Y)
