"""DistributedDataParallel(shard_optimizer=True): torch's numbers, and a device holds its part of the state.

The law of most tables: the same training with and without, in float64, at 1e-10.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from comparing import assert_equal_numbers
from flax import linen, nnx
from flax.training import train_state

import jaxpar
from jaxpar import comm_hooks, optim
from jaxpar.errors import NonFiniteError, OptimizerError

STEPS, B = 4, 24
RANDOM = np.random.RandomState(3)
X, Y = RANDOM.randn(STEPS, B, 5), RANDOM.randn(STEPS, B, 3)


class Net(nnx.Module):
    """Arrays that 8, 4 and 3 devices divide with a remainder, statistics, and a parameter of one number."""

    def __init__(self, seed=0, norm=True):
        rngs = nnx.Rngs(seed)
        self.first = nnx.Linear(5, 13, rngs=rngs, param_dtype=jnp.float64)
        self.norm = jaxpar.nn.BatchNorm(13, param_dtype=jnp.float64) if norm else None
        self.last = nnx.Linear(13, 3, rngs=rngs, param_dtype=jnp.float64)
        self.factor = nnx.Param(jnp.array(1.5))

    def __call__(self, x):
        x = nnx.tanh(self.first(x))
        return self.last(x if self.norm is None else self.norm(x)) * self.factor[...]


def squared(net, x, y):
    return ((net(x) - y) ** 2).mean()


def make(tx, shard, devices=4, loss_fn=squared, net=None, wrt=nnx.Param, wrapper=(), **options):
    net = jaxpar.DistributedDataParallel(
        Net() if net is None else net, range(devices), shard_optimizer=shard, **dict(wrapper)
    )
    optimizer = optim.Optimizer(net, tx, wrt=wrt)
    return jaxpar.train_step(net, optimizer, loss_fn, **options)


def trained(step, batches=None):
    return [float(step(x, y)) for x, y in (zip(X, Y, strict=True) if batches is None else batches)]


def state_of(step):
    """Parameters, statistics and the optimizer's whole arrays, by path."""
    whole = jaxpar.unwrapped_state({"net": step.net, "optimizer": step.optimizer})
    leaves = [(jax.tree_util.keystr(path), x) for path, x in jax.tree.leaves_with_path(whole)]
    return {
        name: np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)
        for name, x in leaves
    }


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, x in one.items():
        assert_equal_numbers(name, other[name], x)


# ------------------------------------------------------------------------------------------ against torch

TORCH = {
    "sgd": ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}, None),
    "nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}, None),
    "adam": ("Adam", {"lr": 0.01}, None),
    "adamw": ("AdamW", {"lr": 0.01, "weight_decay": 0.1}, None),
    "clipped_sgd": ("SGD", {"lr": 0.1, "momentum": 0.9}, {"max_norm": 0.3}),
    "clipped_adamw": ("AdamW", {"lr": 0.01}, {"max_norm": 0.3}),
    "clipped_by_the_largest": ("SGD", {"lr": 0.1}, {"max_norm": 0.05, "norm_type": math.inf}),
    "clipped_by_a_3_norm": ("SGD", {"lr": 0.1}, {"max_norm": 0.05, "norm_type": 3.0}),
}


@pytest.mark.full
@pytest.mark.sampled(3)
@pytest.mark.parametrize("devices", [8, 3])
@pytest.mark.parametrize("name", TORCH)
def test_torchs_numbers(name, devices):
    torch = pytest.importorskip("torch")
    kind, options, clip = TORCH[name]
    stages = [] if clip is None else [optim.clip_grad_norm(**clip)]
    tx = optax.chain(*stages, getattr(optim, kind.lower())(**options))
    net = Net(norm=False)
    weights = [torch.tensor(np.asarray(x[...]), requires_grad=True) for x in parameters(net)]
    step = make(tx, True, devices, net=net)
    theirs = getattr(torch.optim, kind)(weights, **options)
    for x, y in zip(X, Y, strict=True):
        a, b, c, d, e = weights
        # Of equal numbers of rows the mean of the replicas' gradients is that of the batch.
        loss = (((torch.tanh(torch.tensor(x) @ a + b) @ c + d) * e - torch.tensor(y)) ** 2).mean()
        theirs.zero_grad()
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(weights, **clip)
        theirs.step()
        assert_equal_numbers("loss", np.asarray(step(x, y)), loss.detach().numpy())
    for ours, weight in zip(parameters(step.net.module), weights, strict=True):
        assert_equal_numbers("weight", np.asarray(ours[...]), weight.detach().numpy())


def parameters(net):
    return [net.first.kernel, net.first.bias, net.last.kernel, net.last.bias, net.factor]


# ------------------------------------------------------------------------------ the same without the option


def rates(net):
    return optim.param_groups(optim.adam, [{"params": "module/first", "lr": 0.1}, {"params": ...}], lr=0.01)


SUM_OF_COSINES = optax.stateless(
    # What is behind an array's last element, which is 1 here, must not reach the sum.
    lambda g, p: jax.tree.map(lambda x, p: -0.1 * x - 0.01 * jnp.cos(x * 0 + p).sum() / x.size, g, p)
)
ADAM = optim.adam(lr=0.01)
CLIPPED = optax.chain(optim.clip_grad_norm(0.1), optim.adamw(lr=0.01))
SAME = {
    "one_device": (ADAM, {"devices": 1}),
    "pmap": (ADAM, {"wrapper": {"backend": "pmap"}}),
    "own_buffers": (ADAM, {"wrapper": {"forward_sync_buffers": False}}),
    "ignore": (ADAM, {"on_nonfinite": "ignore"}),
    "skip": (ADAM, {"on_nonfinite": "skip"}),
    "accumulate": (ADAM, {"accumulate": 2}),
    "hook": (ADAM, {"wrapper": {"comm_hook": comm_hooks.fp16_compress}}),
    "quotients": (ADAM, {"wrapper": {"comm_hook": comm_hooks.allreduce}}),
    "scaled": (ADAM, {"precision": jaxpar.Precision("float64", loss_scale=8.0)}),
    "some": (ADAM, {"wrt": nnx.All(nnx.Param, nnx.PathContains("last"))}),
    "groups": (rates(None), {}),
    "frozen": (
        optim.param_groups(optim.sgd, [{"params": "module/first", "frozen": True}, {"params": ...}], lr=0.1),
        {},
    ),
    "lamb": (optax.lamb(0.01), {}),
    "lars": (optax.lars(0.1), {}),
    "global_norm": (optax.chain(optax.clip_by_global_norm(0.1), optax.adam(0.01)), {}),
    "dot": (optax.contrib.prodigy(), {}),
    "multi_steps": (optax.MultiSteps(optax.adam(0.01), 2).gradient_transformation(), {}),
    "if_finite": (optax.apply_if_finite(optax.adam(0.01), 3), {}),
    "noise": (optax.noisy_sgd(0.1, key=7), {}),
    "minus_one": (SUM_OF_COSINES, {"devices": 8}),
    "rmsprop": (optax.rmsprop(0.01), {}),
    "schedule": (optim.adam(lr=optax.linear_schedule(0.1, 0.0, 3)), {}),
}


@pytest.mark.full
@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", SAME)
def test_the_same_training(name):
    tx, options = SAME[name]
    plain, divided = make(tx, False, **options), make(tx, True, **options)
    np.testing.assert_allclose(trained(divided), trained(plain), rtol=1e-10)
    assert_same(state_of(plain), state_of(divided))


@pytest.mark.full
@pytest.mark.parametrize("rows", [10, 14], ids=["10_rows", "14_rows"])
def test_uneven_batches(rows):
    """On 4 devices 3, 3, 3, 1 and 4, 4, 4, 2."""
    batches = [(x[:rows], y[:rows]) for x, y in zip(X, Y, strict=True)]
    plain, divided = (make(ADAM, shard, net=Net(norm=False)) for shard in (False, True))
    np.testing.assert_allclose(trained(divided, batches), trained(plain, batches), rtol=1e-10)
    assert_same(state_of(plain), state_of(divided))


@pytest.mark.full
def test_small_arrays_are_sent_together(monkeypatch):
    """As on CPU devices of several processes."""
    plain = make(CLIPPED, False)
    for module in ("compiled_step", "update"):
        monkeypatch.setattr(f"jaxpar._training.{module}.is_flat", lambda placement: True)
    divided = make(CLIPPED, True)
    report = jaxpar.program(divided, X[0], Y[0])
    operations = [e.operation for e in report.exchanges]
    assert operations.count("reduce-scatter") == operations.count("all-gather") == 1
    report.check()
    np.testing.assert_allclose(trained(divided), trained(plain), rtol=1e-10)
    assert_same(state_of(plain), state_of(divided))


@pytest.mark.full
def test_several_networks():
    def train(shard):
        nets = [jaxpar.DistributedDataParallel(Net(seed), range(4), shard_optimizer=shard) for seed in (0, 1)]
        optimizers = [nnx.Optimizer(net, ADAM, wrt=nnx.Param) for net in nets]
        step = jaxpar.train_step(
            nets, optimizers, lambda nets, x, y: squared(nets[0], x, y) + squared(nets[1], x, y)
        )
        return trained(step), [np.asarray(x[...]) for net in nets for x in parameters(net.module)]

    (losses, plain), (others, divided) = train(False), train(True)
    np.testing.assert_allclose(others, losses, rtol=1e-10)
    for one, other in zip(plain, divided, strict=True):
        assert_equal_numbers("weight", other, one)


@pytest.mark.full
def test_a_hook_gets_whole_gradients():
    def norms(update):
        return [optax.tree.norm(nnx.as_pure(tree)) for tree in (update.gradients, update.updates)]

    steps = [make(ADAM, shard, on_update=norms) for shard in (False, True)]
    for step in steps:
        trained(step)
    for one, other in zip(*(step.metrics for step in steps), strict=True):
        assert_equal_numbers("norm", np.asarray(other), np.asarray(one))


@pytest.mark.full
def test_a_pure_step():
    plain, divided = make(ADAM, False), make(ADAM, True)
    trained(plain)
    function, carry = divided.pure()
    carry, _ = jax.lax.scan(lambda carry, batch: function(carry, *batch), carry, (X, Y))
    divided.load(carry)
    assert_same(state_of(plain), state_of(divided))


# ------------------------------------------------------------------------------------- memory and messages


class Wide(nnx.Module):
    def __init__(self):
        self.first = nnx.Linear(63, 257, rngs=nnx.Rngs(0), param_dtype=jnp.float64)
        self.last = nnx.Linear(257, 63, rngs=nnx.Rngs(1), param_dtype=jnp.float64)

    def __call__(self, x):
        return self.last(nnx.tanh(self.first(x)))


def on_one_device(optimizer):
    leaves = jax.tree.leaves(nnx.state(optimizer))
    return [
        sum(s.data.nbytes for x in leaves for s in x.addressable_shards if s.device == device)
        for device in jax.devices()
    ]


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("devices", [8, 3])
def test_a_device_holds_its_part(devices):
    batch = jnp.ones((8, 63))
    plain, divided = (make(ADAM, shard, devices, net=Wide()) for shard in (False, True))
    for step in (plain, divided):
        step(batch, batch)
    held, all_of_it = on_one_device(divided.optimizer), on_one_device(plain.optimizer)
    assert 0 < max(held) <= 1.02 / devices * max(all_of_it)
    sizes = [x.size for x in jax.tree.leaves(nnx.state(plain.net, nnx.Param))]
    saved = sum(size - math.ceil(size / devices) for size in sizes)
    assert max(all_of_it) - max(held) == 2 * 8 * saved
    assert set(held[:devices]) == {max(held)}


def sent(report):
    return sum(e.sent for e in report.exchanges)


def first_parameters(row_rates):
    """An optimizer with an array of a parameter's shape that never changes; or with a rate for each row."""

    def init(params):
        return {"first": jnp.linspace(0.1, 0.2, 13) if row_rates else params}

    def update(gradients, state, params=None):
        def one(g, p, first):
            return -0.1 * g - 0.01 * (p - first)

        if row_rates:
            rate = state["first"][:3].sum()
            return jax.tree.map(lambda g: -rate * g, gradients), state
        return jax.tree.map(one, gradients, params, state["first"]), state

    return optax.GradientTransformation(init, update)


@pytest.mark.full
def test_an_array_that_never_changes_is_divided():
    plain, divided = (make(first_parameters(False), shard) for shard in (False, True))
    assert trained(divided) == pytest.approx(trained(plain), rel=1e-10)
    assert max(on_one_device(divided.optimizer)) < max(on_one_device(plain.optimizer)) / 3


@pytest.mark.full
def test_arrays_of_other_shapes_are_divided_where_they_come_from_gradients():
    def init(params):
        zeros = jax.tree.map(lambda p: jnp.zeros(p.size), params)
        return {"last": zeros, "before": zeros}

    def update(gradients, state, params=None):
        updates = jax.tree.map(
            lambda g, before: -0.1 * (g + before.reshape(g.shape)), gradients, state["before"]
        )
        return updates, {"last": jax.tree.map(jnp.ravel, gradients), "before": state["last"]}

    tx = optax.GradientTransformation(init, update)
    plain, divided = (make(tx, shard) for shard in (False, True))
    assert trained(divided) == pytest.approx(trained(plain), rel=1e-10)
    assert_same(state_of(plain), state_of(divided))
    assert max(on_one_device(divided.optimizer)) < max(on_one_device(plain.optimizer)) / 3


@pytest.mark.full
def test_an_array_that_has_a_parameters_shape_by_chance_stays_whole():
    plain, divided = (make(first_parameters(True), shard) for shard in (False, True))
    assert trained(divided) == pytest.approx(trained(plain), rel=1e-10)
    assert divided.optimizer.opt_state["first"][...].shape == (13,)


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("options", [{}, {"on_nonfinite": "ignore"}, {"accumulate": 2}], ids=str)
@pytest.mark.parametrize("tx", [ADAM, CLIPPED], ids=["adam", "clipped"])
def test_the_program_is_proven_and_sends_no_more(tx, options):
    shapes = [jax.ShapeDtypeStruct((64, 63), jnp.float64)] * 2
    plain, divided = (
        jaxpar.program(make(tx, shard, 8, net=Wide(), **options), *shapes, sharded=r"optimizer.*(mu|nu|exp)")
        for shard in (False, True)
    )
    assert {f.kind for f in plain.findings} == {"unsharded"}
    divided.check()
    assert not divided.findings
    assert {e.operation for e in divided.exchanges} == {"all-reduce", "reduce-scatter", "all-gather"}
    assert not any(e.context for e in divided.exchanges if e.operation != "all-reduce")
    assert sent(divided) <= 1.05 * sent(plain)
    # The gradients, counted by hand: a ring sends an array twice for a sum, and once for either half of it.
    assert sent(plain) == pytest.approx(8 * 2 * 7 / 8 * (2 * 63 * 257 + 63 + 257), rel=0.01)


# ----------------------------------------------------------------------------------------------- refused

ROWS = optax.scale_by_factored_rms(min_dim_size_to_factor=2)
REFUSED = {
    "adafactor": (optim.adafactor(), "reduce_sum of"),
    "factored": (optax.chain(ROWS, optax.scale(-0.1)), "reduce_sum of"),
    "muon": (optax.contrib.muon(0.01), "reduce_sum of|dot_general of"),
    "adaptive_clip": (optax.chain(optax.adaptive_grad_clip(0.01), optax.sgd(0.1)), "reduce_sum of"),
    "lbfgs": (optax.lbfgs(), "scatter of|dot_general of"),
    "sorted": (
        optax.stateless(lambda g, p: jax.tree.map(lambda x: jnp.sort(x.ravel()).reshape(x.shape), g)),
        "sort of",
    ),
    "transposed": (
        optax.stateless(lambda g, p: jax.tree.map(lambda x: x.T.reshape(x.shape), g)),
        "transpose of",
    ),
    "position": (
        optax.stateless(lambda g, p: jax.tree.map(lambda x: jnp.cumsum(x).reshape(x.shape), g)),
        "cumsum of",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_more_than_elements_is_refused(name):
    tx, operation = REFUSED[name]
    net = jaxpar.DistributedDataParallel(Net(), range(4), shard_optimizer=True)
    optimizer = nnx.Optimizer(net, tx, wrt=nnx.Param)
    with pytest.raises(OptimizerError, match=f"shard_optimizer=True divides .*({operation})"):
        jaxpar.train_step(net, optimizer, squared)
    assert optimizer.tx is tx  # it can be used without the option


def test_a_line_search_is_refused():
    tx = optax.chain(optax.sgd(0.1), optax.scale_by_backtracking_linesearch(5))
    with pytest.raises(OptimizerError, match=r"shard_optimizer=True divides .* while of"):
        make(tx, True)


def test_gradients_alone_are_refused():
    net = jaxpar.DistributedDataParallel(Net(), range(4), shard_optimizer=True)
    with pytest.raises(RuntimeError, match=r"value_and_grad: .*jaxpar\.train_step"):
        net.value_and_grad(squared)(X[0], Y[0])


@pytest.mark.full
def test_an_update_by_hand_is_refused():
    step = make(ADAM, True)
    step(X[0], Y[0])
    with pytest.raises(RuntimeError, match=r"Optimizer\.update: .*train_step"):
        step.optimizer.update(step.net, nnx.state(step.net, nnx.Param))


def test_a_mesh_of_two_axes_is_refused():
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    with pytest.raises(ValueError, match="2 devices for each replica"):
        jaxpar.DistributedDataParallel(Net(), mesh=mesh, axis="data", shard_optimizer=True)


def test_nets_that_differ_are_refused():
    nets = [jaxpar.DistributedDataParallel(Net(), range(4), shard_optimizer=s) for s in (True, False)]
    optimizers = [nnx.Optimizer(net, ADAM, wrt=nnx.Param) for net in nets]
    with pytest.raises(ValueError, match="shard_optimizer"):
        jaxpar.train_step(nets, optimizers, lambda nets, x, y: squared(nets[0], x, y))


# ------------------------------------------------------------------------------------- not finite gradients


@pytest.mark.full
@pytest.mark.parametrize("at", [0, 64, 70])
def test_a_gradient_that_is_not_finite_is_named_and_nothing_moves(at):
    def loss(net, x, y, bad):
        kernel = net.first.kernel[...].reshape(-1)
        return squared(net, x, y) + jnp.where(bad.sum() > 0, jnp.nan, 0.0) * kernel[min(at, 64)]

    step = make(ADAM, True, loss_fn=loss)
    none = np.zeros(B)
    step(X[0], Y[0], none)
    before = state_of(step)
    step(X[1], Y[1], none + 1)
    with pytest.raises(NonFiniteError, match=r"first\.kernel was not finite at update 1"):
        step.check()
    assert_same(before, state_of(step))


@pytest.mark.full
def test_a_nan_is_not_lost_in_a_largest_norm():
    def loss(net, x, y):
        return squared(net, x, y) + jnp.nan * net.first.kernel[4, 12]

    tx = optax.chain(optim.clip_grad_norm(0.05, float("inf")), optax.sgd(0.1))
    plain, divided = (make(tx, shard, loss_fn=loss, on_nonfinite="ignore") for shard in (False, True))
    plain(X[0], Y[0]), divided(X[0], Y[0])
    assert np.isnan(state_of(plain)["['net']['first']['bias'].value"]).all()
    assert_same(state_of(plain), state_of(divided))


@pytest.mark.full
def test_a_rate_that_is_set_between_steps():
    plain, divided = (make(ADAM, shard) for shard in (False, True))
    for step in (plain, divided):
        trained(step, batches(0, 2))
        step.optimizer.lr = 0.3
        trained(step, batches(2, 4))
    assert divided.optimizer.lr == 0.3
    assert_same(state_of(plain), state_of(divided))


@pytest.mark.full
def test_whole_arrays_are_put_into_a_divided_optimizer():
    """As a program without jaxpar's checkpoints does."""
    plain, divided = (make(ADAM, shard) for shard in (False, True))
    for step in (plain, divided):
        trained(step, batches(0, 2))
    nnx.update(divided.optimizer, jax.tree.map(jnp.copy, nnx.state(plain.optimizer)))
    np.testing.assert_allclose(trained(divided, batches(2, 4)), trained(plain, batches(2, 4)), rtol=1e-10)
    assert_same(state_of(plain), state_of(divided))


# ------------------------------------------------------------------------------------------- checkpoints

WORLDS = {"plain": (False, 4), "divided_8": (True, 8), "divided_3": (True, 3), "divided_1": (True, 1)}


def fresh(world, seed=5):
    shard, devices = WORLDS[world]
    step = make(CLIPPED, shard, devices, net=Net(seed, norm=False))
    return step, {"net": step.net, "optimizer": step.optimizer, "step": step}


def batches(first, last):
    return list(zip(X[first:last], Y[first:last], strict=True))


@pytest.mark.sampled(3)
@pytest.mark.full
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("divided_8", "divided_3"),
        ("divided_8", "plain"),
        ("plain", "divided_8"),
        ("divided_3", "divided_1"),
        ("divided_8", "divided_8"),
    ],
)
@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
def test_a_checkpoint_goes_on_in_another_world(tmp_path, one, other, used):
    step, items = fresh(one, seed=0)
    trained(step, batches(0, 2))
    with jaxpar.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, **items)
        checkpointer.wait()
        reference = state_of(step)
        losses = trained(step, batches(2, 4))
        then, items = fresh(other)
        if used:
            trained(then, batches(0, 1))
        checkpointer.restore(**items)
    assert_same(reference, state_of(then))
    np.testing.assert_allclose(trained(then, batches(2, 4)), losses, rtol=1e-10)
    assert_same(state_of(step), state_of(then))
    if WORLDS[other][0]:
        n = WORLDS[other][1]
        assert (n, -(-65 // n)) in {x.shape for x in jax.tree.leaves(nnx.state(then.optimizer))}


@pytest.mark.full
def test_the_arrays_are_divided_as_soon_as_they_are_restored(tmp_path):
    step, items = fresh("divided_8")
    step(X[0], Y[0])
    with jaxpar.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, **items)
        checkpointer.restore(**items)
    held = on_one_device(step.optimizer)
    assert max(held) == min(held) + sum(
        x.nbytes for x in jax.tree.leaves(nnx.state(step.optimizer)) if x.size == 1 and len(x.devices()) == 1
    )


@pytest.mark.full
def test_the_whole_state_goes_into_other_programs_and_back():
    step, _ = fresh("divided_8")
    trained(step, batches(0, 2))
    whole = jaxpar.unwrapped_state({"net": step.net, "optimizer": step.optimizer})
    plain, _ = fresh("plain")
    undivided = jaxpar.unwrapped_state({"net": plain.net, "optimizer": plain.optimizer})
    assert jax.tree.structure(whole) == jax.tree.structure(undivided)
    bare = Net(9, norm=False)
    optimizer = optim.Optimizer(bare, CLIPPED, wrt=nnx.Param)
    nnx.update(bare, whole["net"]), nnx.update(optimizer, whole["optimizer"])
    optimizer.update(bare, jax.tree.map(jnp.ones_like, nnx.state(bare, nnx.Param)))
    other, _ = fresh("divided_3")
    jaxpar.load_unwrapped_state(whole, {"net": other.net, "optimizer": other.optimizer})
    assert_same(state_of(step), state_of(other))
    np.testing.assert_allclose(trained(other, batches(2, 4)), trained(step, batches(2, 4)), rtol=1e-10)


@pytest.mark.full
@pytest.mark.parametrize("other", [False, True], ids=["plain", "divided"])
def test_a_step_for_another_wrapper_takes_the_optimizer_over(other):
    step, _ = fresh("divided_8")
    plain, _ = fresh("plain")
    trained(step, batches(0, 2)), trained(plain, batches(0, 2))
    net = jaxpar.DistributedDataParallel(step.net.module, range(3), shard_optimizer=other)
    then = jaxpar.train_step(net, step.optimizer, squared)
    np.testing.assert_allclose(trained(then, batches(2, 4)), trained(plain, batches(2, 4)), rtol=1e-10)


@pytest.mark.full
def test_pieces_are_no_state_for_torch():
    step = make(optim.adam(lr=0.1), shard=True)
    step(X[0], Y[0])
    state = nnx.as_pure(step.optimizer.opt_state)
    with pytest.raises(ValueError, match=r"divided between .* jaxpar\.unwrapped_state"):
        optim.state_to_torch(state, {"param_groups": [{"params": [0]}]}, lambda path: "0")


@pytest.mark.full
def test_replicas_are_compared():
    step, _ = fresh("divided_8")
    step(X[0], Y[0])
    jaxpar.check_replicas(step.optimizer)
    jaxpar.check_replicas(step.net)


# ------------------------------------------------------------------------------------ Linen and functions


class LinenNet(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(3, param_dtype=float)(linen.tanh(linen.Dense(13, param_dtype=float)(x)))


def linen_state():
    net = LinenNet()
    params = net.init(jax.random.key(0), X[0])["params"]
    return net, train_state.TrainState.create(apply_fn=net.apply, params=params, tx=CLIPPED)


def function_state():
    def net(params, x):
        return jnp.tanh(x @ params["first"]) @ params["last"] * params["factor"]

    draw = np.random.RandomState(1).randn
    params = {"first": jnp.array(draw(5, 13)), "last": jnp.array(draw(13, 3)), "factor": jnp.array(1.5)}
    return net, jaxpar.FunctionState.create(params, CLIPPED)


@pytest.mark.full
@pytest.mark.parametrize("make_state", [linen_state, function_state])
def test_states_of_linen_modules_and_functions(make_state):
    def start(shard, state=None):
        net, first = make_state()
        ddp = jaxpar.DistributedDataParallel(net, range(4), shard_optimizer=shard)
        return jaxpar.train_step(ddp, first if state is None else state, squared)

    plain, divided = start(False), start(True)
    np.testing.assert_allclose(trained(divided, batches(0, 2)), trained(plain, batches(0, 2)), rtol=1e-10)
    one, other = (
        {jax.tree_util.keystr(p): np.asarray(x) for p, x in jax.tree.leaves_with_path(s.state)}
        for s in (plain, divided)
    )
    assert_same(one, other)
    # A state goes on in a step with the option and in one without.
    for shard in (False, True):
        then = start(shard, jax.tree.map(jnp.copy, divided.state))
        np.testing.assert_allclose(
            trained(then, batches(2, 4)),
            trained(start(False, jax.tree.map(jnp.copy, plain.state)), batches(2, 4)),
            rtol=1e-10,
        )
