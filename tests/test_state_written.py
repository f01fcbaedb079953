"""What users write into step.state, or set it to, is what the next step starts from, as in a loop by hand."""

from __future__ import annotations

import copy
import pickle
import threading

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState

import jaxpar

RANDOM = np.random.RandomState(0)
X, Y = RANDOM.randn(6, 8, 3), RANDOM.randn(6, 8, 1)
TX = optax.inject_hyperparams(optax.adam)(learning_rate=0.1)


def params():
    return {"w": jnp.asarray(np.linspace(-1, 1, 3)[:, None]), "b": jnp.zeros(1)}


def predict(params, x):
    return jnp.tanh(x @ params["w"] + params["b"])


class Linen(linen.Module):
    @linen.compact
    def __call__(self, x):
        w = self.param("w", lambda key: params()["w"])
        return jnp.tanh(x @ w + self.param("b", lambda key: params()["b"]))


def mse(net, x, y):
    return ((net(x) - y) ** 2).mean()


def of_function(wrap):
    return jaxpar.train_step(wrap(predict), (params(), TX), mse)


def of_linen(wrap):
    net = wrap(Linen())
    state = TrainState.create(apply_fn=None, params=params(), tx=TX)
    return jaxpar.train_step(net, state, mse)


def alone(net):
    return net


def distributed(net):
    return jaxpar.DistributedDataParallel(net, [0, 1])


MAKERS = [of_function, of_linen]


def divided(net):
    return jaxpar.DistributedDataParallel(net, [0, 1], shard_optimizer=True)


WRAPPERS = [alone, distributed, divided]


class ByHand:
    def __init__(self):
        self.params = params()
        self.opt_state = TX.init(self.params)

    def step(self, x, y):
        loss, gradients = jax.value_and_grad(lambda p: mse(lambda x: predict(p, x), x, y))(self.params)
        updates, self.opt_state = TX.update(gradients, self.opt_state, self.params)
        self.params = optax.apply_updates(self.params, updates)
        return loss


@pytest.mark.sampled(5)
@pytest.mark.full
@pytest.mark.parametrize("wrap", WRAPPERS, ids=lambda wrap: wrap.__name__)
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("kind", [float, np.float32, jnp.asarray], ids=["float", "numpy", "jax"])
def test_a_rate_that_is_written_into_the_state(make, wrap, kind):
    step, by_hand, losses = make(wrap), ByHand(), []
    for i, (x, y) in enumerate(zip(X, Y, strict=True)):
        rate = 2.0**-i
        step.state.opt_state.hyperparams["learning_rate"] = kind(rate)
        by_hand.opt_state.hyperparams["learning_rate"] = rate
        losses.append((step(x, y), by_hand.step(x, y)))
    np.testing.assert_allclose(*np.transpose(losses), rtol=1e-12)
    assert abs(losses[-1][0] - losses[0][0]) > 1e-3


@pytest.mark.full
def test_what_is_written_is_read_saved_and_traced():
    step = of_function(alone)
    step.state.opt_state.hyperparams["learning_rate"] = 0.5
    assert step.state.opt_state.hyperparams["learning_rate"] == 0.5
    step.state.opt_state.hyperparams["learning_rate"] = 0.25
    _, carry = step.pure()
    assert 0.25 in [float(x) for x in jax.tree.leaves(carry) if jnp.ndim(x) == 0]
    written = step.state
    written.opt_state.hyperparams["learning_rate"] = 0.125
    step(X[0], Y[0])
    step(X[1], Y[1])
    written.opt_state.hyperparams["learning_rate"] = 0.0625  # of the state that was read last, two steps ago
    step(X[2], Y[2])
    assert step.state.opt_state.hyperparams["learning_rate"] == 0.0625


def test_a_number_is_weakly_typed():
    """As in a loop by hand, where a rate of float64 does not widen updates of float32."""
    step = of_function(alone)
    step.state.opt_state.hyperparams["learning_rate"] = 0.5
    assert step.state.opt_state.hyperparams["learning_rate"].weak_type
    step.state.opt_state.hyperparams["learning_rate"] = np.float32(0.5)
    assert step.state.opt_state.hyperparams["learning_rate"].dtype == "float64"


@pytest.mark.filterwarnings("error")  # JAX warns of types that are cast by a write, and will refuse them
def test_moments_keep_their_type():
    # optax's hyperparameters have the first parameter's type, float64, and would widen the other's moments.
    mixed = params() | {"w": params()["w"].astype(jnp.float32)}
    step = jaxpar.train_step(predict, (mixed, TX), mse)
    step(X[0], Y[0])
    types = jax.tree.map(lambda x: str(x.dtype), step.state.opt_state.inner_state[0])
    assert types.mu == types.nu == {"b": "float64", "w": "float32"}


def test_a_carry_replaces_what_was_written():
    step = of_function(alone)
    _, carry = step.pure()
    state = step.state
    step.load(carry)
    state.opt_state.hyperparams["learning_rate"] = 0.5
    assert step.state.opt_state.hyperparams["learning_rate"] == pytest.approx(0.1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("wrap", WRAPPERS, ids=lambda wrap: wrap.__name__)
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_a_state_that_is_set(make, wrap):
    step, other = make(wrap), make(wrap)
    first = [step(x, y) for x, y in zip(X, Y, strict=True)]
    step.state = step.state.replace(params=params(), opt_state=TX.init(params()))
    other.state = jax.tree.map(np.asarray, step.state)
    again = [step(x, y) for x, y in zip(X, Y, strict=True)]
    np.testing.assert_array_equal(again, first)
    np.testing.assert_array_equal([other(x, y) for x, y in zip(X, Y, strict=True)], first)


REFUSED = {
    "shape": (
        lambda s: s.replace(params={"w": jnp.ones((4, 1)), "b": jnp.ones(1)}),
        ValueError,
        r"params\.w has",
    ),
    "structure": (lambda s: s.replace(params={"w": jnp.ones((3, 1))}), ValueError, "its structure is"),
    "no state": (lambda s: s.params, TypeError, "must be like step.state, not dict"),
}


@pytest.mark.full
@pytest.mark.parametrize("case", REFUSED)
def test_another_state_is_refused_and_nothing_has_moved(case):
    change, error, text = REFUSED[case]
    step, by_hand = of_function(alone), ByHand()
    step(X[0], Y[0]), by_hand.step(X[0], Y[0])
    state = step.state
    with pytest.raises(error, match=text):
        step.state = change(state)
    np.testing.assert_allclose(step(X[1], Y[1]), by_hand.step(X[1], Y[1]), rtol=1e-12)


def test_another_structure_in_a_dict_is_refused_once():
    step, by_hand = of_function(alone), ByHand()
    step.state.params["more"] = jnp.ones(1)
    with pytest.raises(ValueError, match=r"its structure is .*more"):
        step(X[0], Y[0])
    np.testing.assert_allclose(step(X[0], Y[0]), by_hand.step(X[0], Y[0]), rtol=1e-12)


def test_a_part_of_the_program_cannot_be_set():
    net = jaxpar.DistributedDataParallel(lambda params, x: params["f"](x @ params["w"]), [0, 1])
    step = jaxpar.train_step(net, ({"w": jnp.ones((3, 1)), "f": jnp.tanh}, optax.sgd(0.1)), mse)
    with pytest.raises(ValueError, match=r"params\.f is .*sin.* and was .*tanh"):
        step.state = step.state.replace(params={"w": jnp.ones((3, 1)), "f": jnp.sin})


def test_several_networks_have_several_states():
    nets = predict, predict
    step = jaxpar.train_step(
        nets, tuple((params(), TX) for _ in nets), lambda nets, x, y: mse(nets[0], x, y) + mse(nets[1], x, y)
    )
    step(X[0], Y[0])
    step.state = tuple(state.replace(params=params()) for state in step.state)
    np.testing.assert_array_equal(step.state[1].params["w"], params()["w"])
    with pytest.raises(TypeError, match="2 networks have a tuple of as many states"):
        step.state = step.state[0]
    trained, other = step(X[0], Y[0]), step.state
    with pytest.raises(ValueError, match="its structure is"):
        step.state = other[0].replace(params=params()), other[1].replace(params={})
    assert step(X[0], Y[0]) < trained  # the first network has not begun anew


def test_an_nnx_module_has_none():
    net = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    step = jaxpar.train_step(net, nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param), mse)
    for use in (lambda: step.state, lambda: setattr(step, "state", 1)):
        with pytest.raises(AttributeError, match=r"step\.net, step\.optimizer"):
            use()


@pytest.mark.parametrize("wrap", WRAPPERS, ids=lambda wrap: wrap.__name__)
def test_threads_take_turns(wrap):
    """Without a lock they donate the same arrays, which ends the process."""
    step, reference = of_function(wrap), of_function(wrap)
    errors = []

    def train():
        try:
            for _ in range(5):
                step(X[0], Y[0])
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=train) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert step.calls == 15
    for _ in range(15):
        reference(X[0], Y[0])
    np.testing.assert_array_equal(step.state.params["w"], reference.state.params["w"])


def test_a_copy_has_a_lock_of_its_own():
    step = of_function(alone)
    copied = copy.deepcopy(step)
    assert copied(X[0], Y[0]) == step(X[0], Y[0])
    assert copied._lock is not step._lock
    assert type(pickle.loads(pickle.dumps(step._lock))) is type(step._lock)
