"""jaxpar.optim.swa_utils against torch.optim.swa_utils."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparing import assert_equal_numbers
from flax import nnx
from test_schedulers import both, made, run_both

import jaxpar
from jaxpar import nn
from jaxpar.optim import swa_utils as ours

torch = pytest.importorskip("torch")
theirs = torch.optim.swa_utils

WRAPPED = {
    "plain": lambda net: net,
    "DataParallel": lambda net: jaxpar.DataParallel(net, device_ids=[0, 1]),
    "DistributedDataParallel": lambda net: jaxpar.DistributedDataParallel(net, device_ids=[0, 1]),
}
LEAVES = {
    "0.kernel": "0.weight",
    "0.bias": "0.bias",
    "1.scale": "1.weight",
    "1.bias": "1.bias",
    "1.mean": "1.running_mean",
    "1.var": "1.running_var",
    "1.num_batches_tracked": "1.num_batches_tracked",
}
FUNCTIONS = {
    "default": {},
    "swa": {"avg_fn": "get_swa_avg_fn"},
    "swa multi": {"multi_avg_fn": "get_swa_multi_avg_fn"},
    "ema": {"avg_fn": ("get_ema_avg_fn", 0.9)},
    "ema multi": {"multi_avg_fn": ("get_ema_multi_avg_fn", 0.9)},
    "ema multi, near": {"multi_avg_fn": ("get_ema_multi_avg_fn", 0.3)},
    "ema default": {"multi_avg_fn": "get_ema_multi_avg_fn"},
}
BATCHES = [np.random.RandomState(i).randn(n, 3) for i, n in enumerate((8, 6, 4))]


def functions(module, name):
    made = {}
    for key, what in FUNCTIONS[name].items():
        word, *arguments = what if isinstance(what, tuple) else (what,)
        made[key] = getattr(module, word)(*arguments)
    return made


def flax_net():
    return nnx.Sequential(
        nnx.Linear(3, 4, rngs=nnx.Rngs(0), param_dtype=float),
        nn.BatchNorm(4, param_dtype=float),
        nnx.Dropout(0.0, rngs=nnx.Rngs(1)),
    )


def torch_net():
    linear = torch.nn.Linear(3, 4, dtype=torch.float64)
    return torch.nn.Sequential(linear, torch.nn.BatchNorm1d(4, dtype=torch.float64), torch.nn.Dropout(0.0))


def held(net):
    """Our arrays in torch's layout, by torch's names."""
    net = net.module if hasattr(net, "module") else net
    found = {}
    for name, word in LEAVES.items():
        i, leaf = name.split(".")
        x = np.asarray(getattr(net.layers[int(i)], leaf)[...])
        # torch counts in int64
        found[word] = x.T if leaf == "kernel" else x.astype(np.int64) if leaf == "num_batches_tracked" else x
    return found


def set_both(net, twin, seed):
    """Other numbers in both."""
    random = np.random.RandomState(seed)
    bare = net.module if hasattr(net, "module") else net
    state = twin.state_dict()
    for name, word in LEAVES.items():
        i, leaf = name.split(".")
        variable = getattr(bare.layers[int(i)], leaf)
        x = random.rand(*state[word].shape) if state[word].ndim else np.int64(random.randint(1000))
        state[word].copy_(torch.from_numpy(np.asarray(x)))
        variable[...] = jnp.asarray(x.T if leaf == "kernel" else x, variable[...].dtype)


def assert_same(averaged, twin, tolerance=1e-14):
    got = held(averaged.module)
    for word, want in twin.module.state_dict().items():
        assert_equal_numbers(word, got[word], want.numpy(), tolerance)
    assert int(averaged.n_averaged[...]) == int(twin.n_averaged)


def both_averaged(name, use_buffers, wrapped="plain"):
    net, twin = WRAPPED[wrapped](flax_net()), torch_net()
    set_both(net, twin, 99)
    averaged = ours.AveragedModel(net, use_buffers=use_buffers, **functions(ours, name))
    other = theirs.AveragedModel(twin, use_buffers=use_buffers, **functions(theirs, name))
    torch.set_default_dtype(torch.float64)  # torch divides 1 by the number of models in its default type
    try:
        for seed in range(6):
            assert_same(averaged, other)
            set_both(net, twin, seed)
            averaged.update_parameters(net)
            other.update_parameters(twin)
    finally:
        torch.set_default_dtype(torch.float32)
    return averaged, other


@pytest.mark.parametrize("use_buffers", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_average_is_torchs(name, use_buffers):
    if name == "swa multi" and use_buffers:
        with pytest.raises(RuntimeError, match="Integer division with addcdiv"):
            both_averaged(name, use_buffers)  # it is torch that raises, of its own counter of batches
        return
    assert_same(*both_averaged(name, use_buffers))


def test_integers_by_lists_where_torch_raises():
    net, means = flax_net(), []
    averaged = ours.AveragedModel(net, multi_avg_fn=ours.get_swa_multi_avg_fn(), use_buffers=True)
    other = ours.AveragedModel(net, use_buffers=True)
    for count in (10, 3, 8, 101):
        net.layers[1].num_batches_tracked[...] = jnp.int32(count)
        averaged.update_parameters(net)
        other.update_parameters(net)
        means.append(int(averaged.module.layers[1].num_batches_tracked[...]))
    assert means == [10, 6, 6, 29]
    assert int(other.module.layers[1].num_batches_tracked[...]) == 29


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_in_every_module(wrapped):
    averaged, other = both_averaged("ema multi", True, wrapped)
    assert_same(averaged, other)
    x = BATCHES[0]
    averaged.eval()
    other.eval()
    want = other(torch.from_numpy(x)).detach().numpy()
    assert_equal_numbers("called", averaged(x), want, 1e-12)
    assert_equal_numbers("eval_step", jaxpar.eval_step(averaged)(x), want, 1e-12)


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_beside_a_training(wrapped):
    """A step donates what the net holds; the average has its own arrays, and nothing is compiled anew."""
    net = WRAPPED[wrapped](flax_net())
    optimizer = jaxpar.optim.Optimizer(net, jaxpar.optim.sgd(0.1))
    averaged = ours.AveragedModel(net, avg_fn=ours.get_ema_avg_fn(0.5))
    step = jaxpar.train_step(net, optimizer, lambda net, x: (net(x) ** 2).mean())
    want = None
    for _ in range(5):
        step(BATCHES[0])
        averaged.update_parameters(net)
        now = held(net)["0.weight"]
        want = now if want is None else 0.5 * want + 0.5 * now
    assert_equal_numbers(
        "weight",
        held(averaged)["0.weight"] if wrapped == "plain" else held(averaged.module)["0.weight"],
        want,
        1e-14,
    )


def test_without_memory_the_average_is_the_last_to_the_bit():
    net = flax_net()
    averaged = ours.AveragedModel(net, multi_avg_fn=ours.get_ema_multi_avg_fn(0.0))
    for seed in range(3):
        net.layers[0].kernel[...] = jnp.asarray(np.random.RandomState(seed).randn(3, 4))
        averaged.update_parameters(net)
    assert np.array_equal(averaged.module.layers[0].kernel[...], net.layers[0].kernel[...])


def test_a_planted_fault_is_found():
    averaged, other = both_averaged("ema", False)
    other.module[0].weight.data[0, 0] += 1e-11
    with pytest.raises(AssertionError, match="relative difference"):
        assert_same(averaged, other)


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_update_bn(wrapped):
    net, twin = WRAPPED[wrapped](flax_net()), torch_net()
    set_both(net, twin, 0)
    if wrapped == "plain":
        theirs.update_bn([torch.from_numpy(x) for x in BATCHES], twin)
    else:  # BatchNorm of torch.nn.DataParallel keeps the statistics of the first replica
        theirs.update_bn([torch.from_numpy(x[: len(x) // 2]) for x in BATCHES], twin)
    net.eval()
    ours.update_bn(BATCHES, net)
    got = held(net)
    for word, want in twin.state_dict().items():
        assert_equal_numbers(word, got[word], want.numpy(), 1e-12)
    bare = net.module if hasattr(net, "module") else net
    assert bare.layers[1].use_running_average
    assert bare.layers[2].deterministic
    assert bare.layers[1].momentum == 0.1


def test_update_bn_takes_the_first_of_a_batch_and_flaxs_layers():
    net = nnx.Sequential(nnx.BatchNorm(3, rngs=nnx.Rngs(0), momentum=0.7, param_dtype=float))
    for statistic in (net.layers[0].mean, net.layers[0].var):
        statistic.set_value(jnp.full(3, 7.0))  # Flax's own are float32
    ours.update_bn([(x, "label") for x in BATCHES], net, jax.devices()[0])
    assert_equal_numbers("mean", net.layers[0].mean[...], np.mean([x.mean(0) for x in BATCHES], 0), 1e-13)
    assert_equal_numbers("var", net.layers[0].var[...], np.mean([x.var(0) for x in BATCHES], 0), 1e-13)
    assert net.layers[0].momentum == 0.7


def test_update_bn_leaves_the_modes_after_an_error():
    net = flax_net()
    net.eval()

    def broken():
        yield BATCHES[0]
        raise OSError("the disk")

    with pytest.raises(OSError, match="the disk"):
        ours.update_bn(broken(), net)
    assert net.layers[1].use_running_average
    assert net.layers[1].momentum == 0.1


def test_a_module_without_batch_norm_is_not_run():
    def never():
        raise AssertionError
        yield

    ours.update_bn(never(), nnx.Linear(2, 2, rngs=nnx.Rngs(0)))


SWALRS = [
    {"swa_lr": 0.2},
    {"swa_lr": [0.5, 0.01], "anneal_epochs": 7, "anneal_strategy": "linear"},
    {"swa_lr": 0.01, "anneal_epochs": 0},
    {"swa_lr": 0.01, "anneal_epochs": 33},
]


@pytest.mark.parametrize("options", SWALRS, ids=str)
def test_swalr_is_torchs_to_the_last_bit(options):
    their_side, our_side = both()
    run_both(their_side, our_side, theirs.SWALR(their_side, **options), ours.SWALR(our_side, **options))


def test_swalr_beside_another_scheduler():
    their_side, our_side = both()
    pairs = []
    for module, utils, side in (
        (torch.optim.lr_scheduler, theirs, their_side),
        (jaxpar.optim.lr_scheduler, ours, our_side),
    ):
        pairs.append((module.CosineAnnealingLR(side, 30), utils.SWALR(side, 0.05, 5)))
    for t in range(40):
        for scheduler, swa in pairs:
            (swa if t > 20 else scheduler).step()
        assert [g["lr"] for g in our_side.param_groups] == [g["lr"] for g in their_side.param_groups]


def test_a_checkpoint(tmp_path):
    averaged, _ = both_averaged("ema", True)
    fresh = ours.AveragedModel(flax_net())
    with jaxpar.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, averaged=averaged)
        checkpointer.restore(averaged=fresh)
    assert int(fresh.n_averaged[...]) == 6
    for word, x in held(averaged.module).items():
        assert np.array_equal(held(fresh.module)[word], x)


def test_an_average_on_another_device():
    device = jax.devices()[3]
    net = flax_net()
    averaged = ours.AveragedModel(net, device)
    for _ in range(2):
        averaged.update_parameters(net)
    assert averaged.module.layers[0].kernel[...].devices() == {device}
    assert averaged.n_averaged[...].devices() == {device}


def test_half_precision_is_averaged_in_float32():
    net = nnx.Linear(3, 4, rngs=nnx.Rngs(0), param_dtype=jnp.bfloat16)
    twin = torch.nn.Linear(3, 4, dtype=torch.bfloat16)
    pair = (
        ours.AveragedModel(net, multi_avg_fn=ours.get_ema_multi_avg_fn(0.9)),
        theirs.AveragedModel(twin, multi_avg_fn=theirs.get_ema_multi_avg_fn(0.9)),
    )
    for seed in range(5):
        x = np.random.RandomState(seed).randn(3, 4)
        net.kernel[...] = jnp.asarray(x, jnp.bfloat16)
        twin.weight.data.copy_(torch.from_numpy(x.T.copy()))
        pair[0].update_parameters(net)
        pair[1].update_parameters(twin)
    got = np.asarray(pair[0].module.kernel[...], np.float64).T
    assert np.array_equal(got, pair[1].module.weight.detach().double().numpy())


@pytest.mark.parametrize(
    "name", ["AveragedModel", "SWALR", "update_bn", "get_ema_avg_fn", "get_ema_multi_avg_fn"]
)
def test_arguments_and_defaults_are_torchs(name):
    def arguments(module):
        found = getattr(module, name)
        signature = inspect.signature(found.__init__ if inspect.isclass(found) else found)
        return {key: each.default for key, each in signature.parameters.items() if key != "self"}

    assert arguments(ours) == arguments(theirs)


REFUSED = [
    (lambda: ours.get_ema_avg_fn(1.1), ValueError, r"Invalid decay value 1.1"),
    (lambda: ours.get_ema_multi_avg_fn(-1), ValueError, r"Invalid decay value -1"),
    (lambda: ours.AveragedModel(flax_net(), None, max, max), AssertionError, "Only one of"),
    (lambda: ours.SWALR(made(), 0.1, anneal_strategy="x"), ValueError, "must be one of 'cos' or 'linear'"),
    (lambda: ours.SWALR(made(), 0.1, -1), ValueError, "equal or greater than 0"),
    (lambda: ours.SWALR(made(), [0.1]), ValueError, "swa_lr has 1 values"),
    (lambda: ours.SWALR(0.1, 0.1), TypeError, "float is not an Optimizer"),
    (
        lambda: ours.AveragedModel(flax_net()).update_parameters(nnx.Linear(2, 2, rngs=nnx.Rngs(0))),
        ValueError,
        "the average has",
    ),
]


@pytest.mark.parametrize(("build", "error", "words"), REFUSED, ids=lambda x: x if isinstance(x, str) else "")
def test_refused(build, error, words):
    with pytest.raises(error, match=words):
        build()
