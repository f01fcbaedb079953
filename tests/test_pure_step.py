"""TrainStep.pure: many steps in one program give the numbers of as many calls, and load puts them back."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from processes import ROOT, outputs, ranks
from test_extra_arguments import KINDS, distributed, linen_step, nnx_step, parameters, plain
from test_linen_steps import Net as LinenNet
from test_linen_steps import state_of
from test_on_update import Average, overflow
from test_train_step import Net, mse

import jaxpar

RANDOM = np.random.RandomState(0)
STEPS = 5
X, Y = RANDOM.randn(STEPS, 12, 3), RANDOM.randn(STEPS, 12, 1)
UNEVEN = RANDOM.randn(STEPS, 11, 3), RANDOM.randn(STEPS, 11, 1)


def module(kind, **options):
    """Batch normalisation and dropout: statistics and streams move in the program."""
    net = kind(Net())
    # Not adam: the bias before the normalisation has a gradient of rounding errors, which it would divide.
    tx = optax.sgd(0.1, momentum=0.9)
    step = jaxpar.train_step(net, nnx.Optimizer(net, tx, wrt=nnx.Param), mse, **options)
    return step, lambda: numbers((nnx.state(net), nnx.state(step.optimizer)))


def linen(kind, **options):
    def loss_fn(net, key, x, y):
        return ((net(x, rngs={"dropout": key}) - y) ** 2).mean()

    net = kind(LinenNet())
    step = jaxpar.train_step(net, state_of(net), loss_fn, **options)
    return step, lambda: numbers(step.state)


def function(kind, **options):
    def apply(p, x):
        return jnp.tanh(x @ p["a"]["kernel"] + p["a"]["bias"]) @ p["b"]["kernel"] + p["b"]["bias"]

    wrapped = kind(apply)
    state = jaxpar.FunctionState.create(parameters(), optax.adam(0.1))
    step = jaxpar.train_step(wrapped, state, mse, **options)
    return step, lambda: numbers(step.state)


def numbers(tree):
    return [
        np.array(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)
        for x in jax.tree.leaves(tree)
        if hasattr(x, "dtype")
    ]


def close(got, want):
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-13)


def batches_of(make, batches):
    keys = jax.random.split(jax.random.key(0), STEPS)
    return (keys, *batches) if make is linen else batches


def run(make, kind, batches=(X, Y), fault=0.0, **options):
    """Three calls in a scan between two calls of the step itself, beside five calls."""
    (step, values), (called, expected) = make(kind, **options), make(kind, **options)
    batches = batches_of(make, batches)
    rows = [jax.tree.map(lambda x, i=i: x[i], batches) for i in range(STEPS)]
    losses = [step(*rows[0])]
    pure, carry = step.pure()
    between = jax.tree.map(lambda x: x[1:4], batches)
    carry, middle = jax.lax.scan(lambda carry, rows: pure(carry, *rows), carry, between)
    carry = jax.tree.map(lambda x: x + fault if jnp.issubdtype(x.dtype, jnp.floating) else x, carry)
    step.load(carry)
    step.load_state_dict(step.state_dict())
    losses += [*middle, step(*rows[4])]
    close([np.array(x) for x in losses], [np.array(called(*each)) for each in rows])
    close(values(), expected())
    assert (step.calls, step.updates) == (called.calls, called.updates)
    assert not any(x.is_deleted() for x in jax.tree.leaves(carry))
    return step, carry


CASES = [
    pytest.param(make, kind, k, id=f"{make.__name__} {kind.__name__} {k}")
    for make in (module, linen, function)
    for kind in KINDS
    for k in (1, 2)
]


@pytest.mark.full
@pytest.mark.sampled(5)
@pytest.mark.parametrize(("make", "kind", "k"), CASES)
def test_a_scan_is_as_many_calls(make, kind, k):
    run(make, kind, accumulate=k)


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_scan_over_uneven_batches(kind):
    run(module, kind, UNEVEN)


@pytest.mark.full
def test_a_planted_fault_is_found():
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        run(module, plain, fault=1e-8)


def test_the_same_program_gives_the_same_bits():
    (step, values), (called, expected) = module(plain), module(plain)
    pure, carry = step.pure()
    for x, y in zip(X, Y, strict=True):
        carry, loss = pure(carry, x, y)
        assert loss == called(x, y)
    step.load(carry)
    assert all(map(np.array_equal, values(), expected()))


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_ensemble_by_vmap(kind):
    singles = [module(kind) for _ in range(2)]
    carries, function = [], None
    for i, (step, _) in enumerate(singles):
        nnx.update(step.net, jax.tree.map(lambda x, i=i: x * (1 + i), nnx.state(step.net, nnx.Param)))
        function, carry = step.pure()
        carries.append(carry)
    carry = jax.tree.map(lambda *x: jnp.stack(x), *carries)
    both, losses = jax.jit(jax.vmap(function, in_axes=(0, None, None)))(carry, X[0], Y[0])
    expected = [step(X[0], Y[0]) for step, _ in singles]
    close(list(losses), expected)
    for i, (step, values) in enumerate(singles):
        want = values()
        step.load(jax.tree.map(lambda x, i=i: x[i], both))
        close(values(), want)
    with pytest.raises(ValueError, match=r"as jax.vmap gives them, one"):
        singles[0][0].load(both)


@pytest.mark.sampled(3)
@pytest.mark.full
@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("kind", [plain, distributed], ids=lambda kind: kind.__name__)
def test_results_come_with_the_loss(kind, k):
    """The aux of the loss function and what `on_update` returned, whose Variables are in the carry."""

    def with_aux(net, x, y):
        outputs = net(x)
        return ((outputs - y) ** 2).mean(), outputs

    made = [nnx_step(kind, optax.adam(0.1), with_aux, has_aux=True, accumulate=k) for _ in range(2)]
    hooks = [Average(parameters()) for _ in range(2)]
    made = [
        nnx_step(kind, optax.adam(0.1), with_aux, has_aux=True, accumulate=k, on_update=hook)
        for hook in hooks
    ]
    (step, values), (called, expected) = made
    function, carry = step.pure()
    function = jax.jit(function)
    for i, (x, y) in enumerate(zip(X, Y, strict=True)):
        carry, (loss, aux, metrics) = function(carry, x, y)
        want_loss, want_aux = called(x, y)
        close([loss, aux], [want_loss, want_aux])
        if (i + 1) % k == 0:
            close(jax.tree.leaves(metrics), jax.tree.leaves(called.metrics))
        else:
            assert not any(x.any() for x in jax.tree.leaves(metrics))
    step.load(carry)
    close(jax.tree.leaves(values()), jax.tree.leaves(expected()))
    close(hooks[0].values(), hooks[1].values())
    assert int(hooks[0].number[...]) == STEPS // k


def test_trouble_is_reported_after_load():
    step, params = nnx_step(plain, optax.sgd(0.1), overflow)
    function, carry = step.pure()
    before = jax.tree.leaves(jax.tree.map(np.array, params()))
    carry, _ = jax.lax.scan(lambda c, f: function(c, X[0], Y[0], f), carry, jnp.zeros(3))
    step.load(carry)
    with pytest.raises(jaxpar.errors.NonFiniteError, match="not finite at update 0"):
        step.check()
    close(jax.tree.leaves(params()), before)


def test_a_loss_scale_is_carried():
    precision = jaxpar.Precision("float64", loss_scale=8.0, growth_interval=2)
    step, _ = nnx_step(plain, optax.sgd(0.1), overflow, precision=precision)
    function, carry = step.pure()
    scales = []
    for factor in (1.0, 1.0, 0.0, 1.0):
        carry, _ = function(carry, X[0], Y[0], jnp.float64(factor))
        scales.append(float(carry.step["scale"]))
    assert scales == [8.0, 16.0, 8.0, 8.0]


@pytest.mark.full
def test_a_hook_of_the_communication_keeps_its_state():
    def make():
        net = jaxpar.DistributedDataParallel(Net(), [0, 1])
        net.register_comm_hook(jaxpar.comm_hooks.powersgd(1, start_powersgd_iter=2))
        return jaxpar.train_step(net, nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param), mse), net

    (step, net), (called, other) = make(), make()
    function, carry = step.pure()
    carry, losses = jax.lax.scan(lambda carry, rows: function(carry, *rows), carry, (X[:4], Y[:4]))
    close(list(losses), [called(x, y) for x, y in zip(X[:4], Y[:4], strict=True)])
    step.load(carry)
    close([step(X[4], Y[4])], [called(X[4], Y[4])])
    close(numbers(nnx.state(net)), numbers(nnx.state(other)))


def inside():
    step, _ = module(plain)

    def loss(x):
        return step(x, Y[0])

    yield lambda: jax.jit(loss)(X[0])
    yield lambda: jax.lax.scan(lambda carry, x: (carry, loss(x)), 0.0, X)
    yield lambda: jax.vmap(loss)(X)
    yield lambda: jax.grad(loss)(X[0])
    yield lambda: jax.grad(lambda factor: factor * step(X[0], Y[0]))(1.0)


@pytest.mark.parametrize("i", range(5))
def test_a_step_inside_of_a_transformation_raises(i):
    with pytest.raises(jaxpar.errors.StagedError, match=r"function, carry = step.pure\(\)"):
        list(inside())[i]()


def test_what_cannot_be_pure_is_refused():
    step, _ = module(plain)
    function, carry = step.pure()
    with pytest.raises(TypeError, match="Rngs is an argument, whose Variables"):
        function(carry, nnx.Rngs(0), X[0], Y[0])
    with pytest.raises(TypeError, match=r"a carry is a jaxpar\.StepCarry, not dict"):
        step.load({})
    with pytest.raises(TypeError, match="the carry is traced"):
        jax.jit(step.load)(carry)
    with pytest.raises(ValueError, match=r"net\['params\.a\.bias'\] has shape None"):
        linen_step(plain, optax.sgd(0.1))[0].load(carry)
    with pytest.raises(jaxpar.errors.BatchError, match="the batch is empty"):
        function(carry, X[0, :0], Y[0, :0])
    net = jaxpar.DistributedDataParallel(Net(), [0, 1])
    step = jaxpar.train_step(net, nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param), mse)
    with net.no_sync(), pytest.raises(RuntimeError, match=r"no_sync\(\)"):
        step.pure()


@pytest.mark.full
def test_the_step_goes_on_beside_a_carry():
    """A carry is a copy: neither the step's donation nor a later mode of the net changes it."""
    (step, _), (called, _) = module(plain), module(plain)
    function, carry = step.pure()
    losses = [float(step(X[0], Y[0]))]
    step.net.eval()
    step(X[1], Y[1])
    losses.append(float(function(carry, X[0], Y[0])[1]))
    assert losses[0] == losses[1] == float(called(X[0], Y[0]))


IN_A_RANK = """
    import optax
    from flax import nnx

    import jaxpar
    from jaxpar import distributed as dist

    dist.init_process_group()
    import test_pure_step as cases  # which uses JAX

    rank = dist.get_rank()
    alone = [dist.new_group([0]), dist.new_group([1])][rank]

    def ddp(net):
        return jaxpar.DistributedDataParallel(net, process_group=alone)

    for kind in (cases.plain, jaxpar.DataParallel, ddp):
        cases.run(cases.module, kind)
        print(kind.__name__, "as five calls")
    net = jaxpar.DistributedDataParallel(nnx.Linear(3, 1, rngs=nnx.Rngs(0)))
    step = jaxpar.train_step(net, nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param), cases.mse)
    step(cases.X[0], cases.Y[0])
    if rank == 1:  # alone: it meets nobody
        try:
            step.pure()
        except RuntimeError as error:
            print(error)
    step(cases.X[1], cases.Y[1])
    jaxpar.check_replicas(net)
    dist.destroy_process_group()
"""


@pytest.mark.slow
def test_in_several_processes_a_pure_step_is_of_one():
    path = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    printed = outputs(ranks(2, IN_A_RANK, devices=2, env=path, timeout=400))
    # Gloo writes its lines in parts, so another line may part one from its end and leave an empty line.
    lines = [[line for line in text.splitlines() if line and "[Gloo]" not in line] for text in printed]
    same = [f"{kind} as five calls" for kind in ("plain", "DataParallel", "ddp")]
    assert lines[0] == lines[1][:-1] == same
    assert re.match(r"TrainStep.pure: each of 2 processes brings its own rows.*DataParallel", lines[1][-1])
