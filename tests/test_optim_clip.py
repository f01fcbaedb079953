"""clip_grad_norm, clip_grad_value and get_total_norm against torch.nn.utils; parameter groups."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from comparing import assert_equal_numbers
from flax import nnx

from jaxpar import optim

torch = pytest.importorskip("torch")

TOLERANCE = 1e-14
INF = float("inf")


def draw(scale):
    random = np.random.RandomState(0)
    return {
        "a": random.randn(4, 3) * scale,
        "b": random.randn(5) * scale,
        "c": np.asarray(random.randn() * scale),
    }


def tensors(grads):
    found = [torch.zeros(np.shape(g), dtype=torch.float64, requires_grad=True) for g in grads.values()]
    for p, g in zip(found, grads.values(), strict=True):
        p.grad = torch.tensor(g, dtype=torch.float64)
    return found


# A norm near the 1e-6 that torch adds, one that is not clipped, one that is.
@pytest.mark.parametrize("scale", [1e-6, 0.01, 10.0])
@pytest.mark.parametrize("norm_type", [2.0, 1.0, 0.5, 3.5, INF, -INF, 0.0])
def test_norms_and_clipped_gradients(scale, norm_type):
    grads = draw(scale)
    params = tensors(grads)
    want = torch.nn.utils.clip_grad_norm_(params, 1e-6 if scale < 1e-3 else 1.0, norm_type)
    tx = optim.clip_grad_norm(1e-6 if scale < 1e-3 else 1.0, norm_type)
    clipped, state = jax.jit(tx.update)(grads, tx.init(grads))
    assert_equal_numbers("norm", optax.tree.get(state, "total_norm"), want.numpy(), TOLERANCE)
    for (name, got), p in zip(clipped.items(), params, strict=True):
        assert_equal_numbers(name, got, p.grad.numpy(), TOLERANCE)


def test_optax_lacks_the_small_number():
    grads = draw(0.01)
    params = tensors(grads)
    torch.nn.utils.clip_grad_norm_(params, 0.01)
    got, _ = optax.clip_by_global_norm(0.01).update(grads, optax.EmptyState())
    with pytest.raises(AssertionError, match="relative difference"):
        assert_equal_numbers("a", np.asarray(got["a"]), params[0].grad.numpy(), 1e-6)


def test_values():
    grads = draw(1.0)
    params = tensors(grads)
    torch.nn.utils.clip_grad_value_(params, 0.5)
    got, _ = optim.clip_grad_value(0.5).update(grads, optax.EmptyState())
    for (name, g), p in zip(got.items(), params, strict=True):
        assert_equal_numbers(name, np.asarray(g), p.grad.numpy(), 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("jit", [False, True])
def test_a_norm_that_is_not_finite(bad, jit):
    grads = {"a": jnp.asarray([1.0, bad])}
    update = optim.clip_grad_norm(1.0, error_if_nonfinite=True).update
    with pytest.raises(RuntimeError, match=r"The total norm of order 2.0 for gradients from `parameters`"):
        jax.block_until_ready((jax.jit(update) if jit else update)(grads, None))
    fine, _ = (jax.jit(update) if jit else update)({"a": jnp.asarray([3.0, 4.0])}, None)
    np.testing.assert_allclose(fine["a"], [0.6, 0.8], rtol=1e-6)
    quiet, state = optim.clip_grad_norm(1.0).update(grads, None)
    theirs = tensors({"a": np.array([1.0, bad])})
    torch.nn.utils.clip_grad_norm_(theirs, 1.0)
    np.testing.assert_array_equal(quiet["a"], theirs[0].grad.numpy())
    assert not np.isfinite(state.total_norm)


def test_norms_of_nothing_and_of_half_precision():
    assert float(optim.get_total_norm({})) == 0
    grads = {"a": jnp.full(10_000, 10, jnp.bfloat16)}
    tx = optim.clip_grad_norm(1.0)
    clipped, state = tx.update(grads, tx.init(grads))
    assert (state.total_norm.dtype, clipped["a"].dtype) == (jnp.float32, jnp.bfloat16)
    assert float(state.total_norm) == pytest.approx(1000, rel=1e-6)


# ---------------------------------------------------------------------------------- parameter groups

PARAMS = {
    "base": {"w": np.ones((3, 2)), "b": np.ones(2)},
    "base2": np.ones(4),
    "head": {"w": np.ones((2, 2))},
}


def train(tx, params, steps=4):
    state = tx.init(params)

    @jax.jit
    def step(params, state):
        grads = jax.tree.map(lambda p: 0.1 * p + 1, params)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(steps):
        params, state = step(params, state)
    return params


@pytest.mark.parametrize(("word", "kind"), [("sgd", "SGD"), ("adamw", "AdamW"), ("adafactor", "Adafactor")])
def test_groups_are_torchs(word, kind):
    flat = {
        name: torch.tensor(np.array(p), requires_grad=True)
        for name, p in [
            ("base/w", PARAMS["base"]["w"]),
            ("base/b", PARAMS["base"]["b"]),
            ("base2", PARAMS["base2"]),
            ("head/w", PARAMS["head"]["w"]),
        ]
    }
    optimizer = getattr(torch.optim, kind)(
        [
            {"params": [flat["base/w"]], "lr": 0.5},
            {"params": [flat["base/b"], flat["head/w"]], "weight_decay": 0.1},
            {"params": [flat["base2"]]},
        ],
        lr=0.1,
    )
    for _ in range(4):
        for p in flat.values():
            p.grad = 0.1 * p.detach() + 1
        optimizer.step()
    tx = optim.param_groups(
        getattr(optim, word),
        [
            {"params": "base/w", "lr": 0.5},
            {"params": [lambda path: path.endswith("/b"), "head"], "weight_decay": 0.1},
            {"params": ...},
        ],
        lr=0.1,
    )
    got = train(tx, PARAMS)
    for name, p in flat.items():
        leaf = got
        for key in name.split("/"):
            leaf = leaf[key]
        assert_equal_numbers(name, leaf, p.detach().numpy(), 1e-12)


def test_frozen_leaves_stay():
    tx = optim.param_groups(optim.adamw, [{"params": "base", "frozen": True}, {"params": ...}], lr=0.1)
    got = train(tx, PARAMS)
    np.testing.assert_array_equal(got["base"]["w"], PARAMS["base"]["w"])
    assert not np.array_equal(got["base2"], PARAMS["base2"])


def test_groups_in_an_nnx_optimizer():
    model = nnx.Sequential(nnx.Linear(3, 3, rngs=nnx.Rngs(0)), nnx.Linear(3, 2, rngs=nnx.Rngs(1)))
    tx = optim.param_groups(optim.sgd, [{"params": "layers/0", "lr": 0.0}, {"params": ...}], lr=0.1)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    first, last = np.array(model.layers[0].kernel[...]), np.array(model.layers[1].kernel[...])

    @nnx.jit
    def step(model, optimizer):
        optimizer.update(model, nnx.grad(lambda m: (m(jnp.ones((2, 3))) ** 2).mean())(model))

    step(model, optimizer)
    np.testing.assert_array_equal(model.layers[0].kernel[...], first)
    assert not np.array_equal(model.layers[1].kernel[...], last)


GROUPS = {
    "in two groups": (
        [{"params": "base"}, {"params": ["base/w"]}, {"params": ...}],
        "base/w is in groups 0 and 1",
    ),
    "in no group": ([{"params": "base"}], "base2 is in no group"),
    "no leaf": ([{"params": "tail"}, {"params": ...}], "no leaf is in group 0 .params='tail'"),
    "no key": ([{"lr": 0.1}], "group 0 has no key 'params'"),
    "none": ([], "optimizer got an empty parameter list"),
    "frozen and trained": (
        [{"params": ..., "frozen": True, "lr": 1.0}],
        r"is frozen and has the options \['lr'\]",
    ),
}


@pytest.mark.parametrize("case", GROUPS)
def test_groups_that_cannot_be(case):
    groups, message = GROUPS[case]
    with pytest.raises(ValueError, match=message):
        optim.param_groups(optim.sgd, groups, lr=0.1).init(PARAMS)
