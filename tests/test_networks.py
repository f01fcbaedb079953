"""Several networks in one step, and networks, streams and metrics among its arguments, against torch."""

from __future__ import annotations

import contextlib
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from comparing import assert_equal_trees
from flax import nnx
from processes import outputs, ranks

import jaxpar
from jaxpar._parallel.modules.bundle import set_aside

torch = pytest.importorskip("torch")
import torch_ref  # noqa: E402

torch.set_num_threads(1)

N, STEPS = 4, 3
RANDOM = np.random.RandomState(0)
X, Z = RANDOM.randn(STEPS, 11, 3), RANDOM.randn(STEPS, 11, 2)  # 3, 3, 3 and 2 rows on 4 devices


class Net(nnx.Module):
    """torch.nn.Sequential(Linear, BatchNorm1d, Tanh, Linear)."""

    def __init__(self, i, o, rngs):
        self.first = nnx.Linear(i, 5, rngs=rngs, param_dtype=jnp.float64)
        self.norm = jaxpar.nn.BatchNorm(5, param_dtype=jnp.float64)
        self.last = nnx.Linear(5, o, rngs=rngs, param_dtype=jnp.float64)

    def __call__(self, x):
        return self.last(jnp.tanh(self.norm(self.first(x))))


LAYERS = {"0": "first", "1": "norm", "3": "last"}


def twins(widths=((2, 3), (3, 1))):
    """Networks here and in torch, with the same weights: a generator and a discriminator."""
    torch.manual_seed(0)
    pairs = []
    for i, o in widths:
        theirs = torch.nn.Sequential(
            torch.nn.Linear(i, 5), torch.nn.BatchNorm1d(5), torch.nn.Tanh(), torch.nn.Linear(5, o)
        ).double()
        ours = Net(i, o, nnx.Rngs(0))
        for name, layer in LAYERS.items():
            linear = isinstance(getattr(ours, layer), nnx.Linear)
            weight, bias = (p.detach().numpy() for p in theirs.get_submodule(name).parameters())
            here = getattr(ours, layer)
            (here.kernel if linear else here.scale)[...] = jnp.asarray(weight.T if linear else weight)
            here.bias[...] = jnp.asarray(bias)
        pairs.append((ours, theirs))
    return pairs


def values(ours) -> dict[str, np.ndarray]:
    flat = nnx.to_flat_state(nnx.state(ours))
    return {".".join(map(str, path)).removeprefix("module."): np.asarray(x[...]) for path, x in flat}


def torch_values(theirs) -> dict[str, np.ndarray]:
    """Under our names."""
    found = {}
    for name, value in theirs.state_dict().items():
        number, what = name.removeprefix("module.").split(".")
        here = {"running_mean": "mean", "running_var": "var"}.get(what, what)
        array = value.numpy().copy()
        if array.dtype == np.int64:  # a counter
            array = array.astype(np.int32)
        if what == "weight":
            here, array = ("kernel", array.T) if array.ndim == 2 else ("scale", array)
        found[f"{LAYERS[number]}.{here}"] = array
    return found


# ------------------------------------------------------------------------------- the losses, for both


def discriminate(d, g, x, z, detach):
    return ((d(x) - 1) ** 2).mean() + (d(detach(g(z))) ** 2).mean()


def generate(g, d, z):
    return ((d(g(z)) - 1) ** 2).mean()


def play(g, d, x, z, detach):
    """Both losses of one forward pass."""
    made = g(z)
    return ((d(made) - 1) ** 2).mean(), ((d(x) - 1) ** 2).mean() + (d(detach(made)) ** 2).mean()


def rebuild(nets, x, z):
    g, d = nets
    return ((d(g(z)) - x[:, :1]) ** 2).mean() + ((g(z) - x) ** 2).mean()


def distil(student, teacher, x):
    return ((student(x) - teacher(x)) ** 2).mean()


# -------------------------------------------------------------------------------------- both sides


def plain(module):
    return module


def data_parallel(module):
    return jaxpar.DataParallel(module, list(range(N)))


def distributed(module):
    return jaxpar.DistributedDataParallel(module, list(range(N)))


KINDS = [plain, data_parallel, distributed]


@contextlib.contextmanager
def torch_devices(kind):
    """How torch wraps a module of this kind, and where it is."""
    if kind is not data_parallel:
        yield lambda module: module
        return
    with torch_ref.pretend(N) as devices:
        yield lambda module: torch.nn.DataParallel(module.to(devices.device), list(range(N)))


def torch_step(kind, nets, optimizers, loss_fn, *batch):
    """`loss_fn(*nets, *batch)`; of all nets buffers move on, and those with an optimizer are trained, each by
    its own loss if there are as many."""
    batch = [torch.tensor(x) for x in batch]
    trained = [[p for group in optimizer.param_groups for p in group["params"]] for optimizer in optimizers]
    if kind is distributed:
        losses, gradients = torch_replicas(nets, trained, loss_fn, batch)
    else:
        losses, gradients = torch_gradients(loss_fn(*nets, *batch), trained)
    for p, gradient in zip(itertools.chain(*trained), gradients, strict=True):
        p.grad = gradient
    for optimizer in optimizers:
        optimizer.step()
    return losses


def torch_gradients(value, trained):
    if not isinstance(value, tuple):
        return [float(value.detach())], torch.autograd.grad(value, list(itertools.chain(*trained)))
    of_each = [torch.autograd.grad(v, ps, retain_graph=True) for v, ps in zip(value, trained, strict=True)]
    return [float(v.detach()) for v in value], [g for gradients in of_each for g in gradients]


def torch_replicas(nets, trained, loss_fn, batch):
    """What N ranks of DistributedDataParallel do: the mean of their gradients, rank 0's buffers."""
    pieces = list(zip(*(torch.chunk(x, N) for x in batch), strict=True))
    before = [{name: b.clone() for name, b in net.named_buffers()} for net in nets]
    found, after = [], None
    for piece in pieces:
        for net, buffers in zip(nets, before, strict=True):
            net.load_state_dict(buffers, strict=False)
        found.append(torch_gradients(loss_fn(*nets, *piece), trained))
        after = after or [{name: b.clone() for name, b in net.named_buffers()} for net in nets]
    for net, buffers in zip(nets, after, strict=True):
        net.load_state_dict(buffers, strict=False)
    losses, gradients = zip(*found, strict=True)
    return np.mean(losses, 0), [sum(of_each) / N for of_each in zip(*gradients, strict=True)]


def sgd(net):
    if isinstance(net, torch.nn.Module):
        return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    return nnx.Optimizer(net, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)


def gan_in_two_steps(kind, ours, theirs):
    (g, d), (torch_g, torch_d) = ours, theirs
    of_d = jaxpar.train_step(d, sgd(d), lambda d, g, x, z: discriminate(d, g, x, z, jax.lax.stop_gradient))
    of_g = jaxpar.train_step(g, sgd(g), generate)
    torch_sgd_d, torch_sgd_g = sgd(torch_d), sgd(torch_g)
    for x, z in zip(X, Z, strict=True):
        got = [float(of_d(g, x, z)), float(of_g(d=d, z=z))]
        want = [
            torch_step(
                kind,
                [torch_d, torch_g],
                [torch_sgd_d],
                lambda d, g, x, z: discriminate(d, g, x, z, torch.Tensor.detach),
                x,
                z,
            ),
            torch_step(kind, [torch_g, torch_d], [torch_sgd_g], generate, z),
        ]
        yield got, np.concatenate(want)


def gan_in_one_step(kind, ours, theirs):
    """Both networks at once, each by its own loss."""

    def losses(nets, x, z):
        return play(*nets, x, z, jax.lax.stop_gradient)

    def torch_losses(g, d, x, z):
        return play(g, d, x, z, torch.Tensor.detach)

    step = jaxpar.train_step(ours, tuple(map(sgd, ours)), losses)
    optimizers = list(map(sgd, theirs))
    for x, z in zip(X, Z, strict=True):
        got = step(x, z)
        assert isinstance(got, tuple)
        yield list(map(float, got)), torch_step(kind, theirs, optimizers, torch_losses, x, z)


def two_optimizers(kind, ours, theirs):
    step = jaxpar.train_step(ours, tuple(map(sgd, ours)), rebuild)
    optimizers = list(map(sgd, theirs))
    for x, z in zip(X, Z, strict=True):
        want = torch_step(kind, theirs, optimizers, lambda g, d, x, z: rebuild((g, d), x, z), x, z)
        yield [float(step(x, z))], want


def teacher_and_student(kind, ours, theirs):
    """The teacher is in training mode, and its statistics move."""
    (student, teacher), (torch_student, torch_teacher) = ours, theirs
    step = jaxpar.train_step(student, sgd(student), lambda net, x, batch: distil(net, batch["of"], x))
    optimizer = sgd(torch_student)
    for x in X:
        want = torch_step(kind, [torch_student, torch_teacher], [optimizer], distil, x)
        yield [float(step(x, {"of": teacher}))], want


SCENES = [gan_in_two_steps, gan_in_one_step, two_optimizers, teacher_and_student]
WIDTHS = {teacher_and_student: ((3, 1), (3, 1))}


def compare_with_torch(scene, kind):
    pairs = twins(WIDTHS.get(scene, ((2, 3), (3, 1))))
    with torch_devices(kind) as wrapped:
        ours, theirs = tuple(kind(a) for a, _ in pairs), [wrapped(b) for _, b in pairs]
        for got, want in scene(kind, ours, theirs):
            np.testing.assert_allclose(got, want, rtol=1e-10)
            for a, b in zip(ours, theirs, strict=True):
                assert_equal_trees(scene.__name__, values(a), torch_values(b))


@pytest.mark.full
@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_networks_train_as_in_torch(scene, kind):
    compare_with_torch(scene, kind)


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("scene", [gan_in_two_steps, gan_in_one_step], ids=lambda scene: scene.__name__)
def test_a_planted_fault_is_found(scene, kind, monkeypatch):
    exact = jax.lax.stop_gradient
    monkeypatch.setattr(jax.lax, "stop_gradient", lambda x: exact(x) * (1 + 1e-9))
    with pytest.raises(AssertionError):
        compare_with_torch(scene, kind)


# ------------------------------------------------------------------------------------------ streams


class Noisy(nnx.Module):
    """Adds noise of a stream that it is given."""

    def __init__(self):
        self.scale = nnx.Param(jnp.ones((), jnp.float64))

    def __call__(self, x, rngs):
        return self.scale * x + jax.random.normal(rngs(), x.shape, jnp.float64)


def noise_of(replica, calls, rows):
    """What a stream of seed 5 gives in its calls on one replica, written without the library."""
    rngs = nnx.Rngs(5 if replica is None else jax.random.fold_in(jax.random.key(5), replica))
    return [np.asarray(jax.random.normal(rngs(), (rows, 3), jnp.float64)) for _ in range(calls)]


def noise(kind, calls=2):
    if kind is plain:
        return noise_of(None, calls, 11)
    of_each = [noise_of(i, calls, rows) for i, rows in enumerate((3, 3, 3, 2))]
    return [np.concatenate(parts) for parts in zip(*of_each, strict=True)]


@pytest.mark.full
@pytest.mark.parametrize("kind", [data_parallel, distributed], ids=lambda kind: kind.__name__)
def test_a_stream_as_an_argument_of_a_call(kind):
    # docs/semantics.md row 57: every replica has a stream of its own.
    net, rngs = kind(Noisy()), nnx.Rngs(5)
    for i, expected in enumerate(noise(kind)):
        np.testing.assert_array_equal(net(X[0], rngs=rngs) - X[0], (X[0] + expected) - X[0])
        assert int(rngs.default.count[...]) == i + 1


def squares(net, rngs, x):
    return (net(x, rngs) ** 2).mean()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_stream_as_an_argument_of_a_step(kind):
    net, rngs = kind(Noisy()), nnx.Rngs(5)
    step = jaxpar.train_step(net, nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param), squares)
    scale = 1.0
    for i, added in enumerate(noise(kind)):
        loss = step(rngs, X[0])
        rows = np.split(np.arange(11), [3, 6, 9]) if kind is distributed else [np.arange(11)]
        y = scale * X[0] + added
        np.testing.assert_allclose(loss, np.mean([(y[r] ** 2).mean() for r in rows]), rtol=1e-12)
        scale -= 0.1 * np.mean([(2 * y[r] * X[0][r]).mean() for r in rows])
        np.testing.assert_allclose(jax.tree.leaves(nnx.state(net, nnx.Param))[0], scale, rtol=1e-12)
        assert int(rngs.default.count[...]) == i + 1
    step(nnx.Rngs(i), X[0])  # another object, of the same kind: no program of its own


class Counts(Net):
    """Counts its calls, also in evaluation mode."""

    def __init__(self, i, o, rngs):
        super().__init__(i, o, rngs)
        self.calls = nnx.BatchStat(jnp.zeros((), jnp.int32))

    def __call__(self, x):
        self.calls[...] += 1
        return super().__call__(x)


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_evaluation_moves_streams_and_nothing_else(kind):
    ours, other, rngs = Counts(2, 3, nnx.Rngs(0)), Counts(3, 1, nnx.Rngs(1)), nnx.Rngs(5)
    net, other = kind(ours), kind(other)
    before = values(net) | values(other)

    def noisy(net, other, rngs, z):
        return other(net(z)) + jax.random.normal(rngs(), (11, 1))

    evaluate = jaxpar.eval_step(net, noisy)
    one, two = np.asarray(evaluate(other, rngs, Z[0])), np.asarray(evaluate(other, rngs, Z[0]))
    (first,), (second,) = ([np.asarray(jax.random.normal(key, (11, 1)))] for key in keys(2))
    np.testing.assert_allclose(two - one, second - first, atol=1e-12)
    assert_equal_trees("unchanged", values(net) | values(other), before)
    assert int(rngs.default.count[...]) == 2


def keys(n):
    rngs = nnx.Rngs(5)
    return [rngs() for _ in range(n)]


# ------------------------------------------------------------------------------- metrics, and errors


class Total(nnx.Metric):
    def __init__(self):
        self.total = nnx.metrics.MetricState(jnp.zeros((), jnp.float64))

    def update(self, *, values):
        self.total[...] += values.sum()


@pytest.mark.parametrize("kind", [plain, data_parallel], ids=lambda kind: kind.__name__)
def test_a_metric_as_an_argument(kind):
    (ours, _), _ = twins()
    net, total = kind(ours), Total()

    def loss_fn(net, total, z):
        loss = (net(z) ** 2).mean()
        total.update(values=loss)
        return loss

    step = jaxpar.train_step(net, sgd(net), loss_fn)
    losses = [float(step(total, z)) for z in Z]
    np.testing.assert_allclose(total.total[...], np.sum(losses), rtol=1e-12)


def refused():
    (ours, _), (other, _) = twins()
    net = jaxpar.DataParallel(ours, list(range(N)))
    ddp = jaxpar.DistributedDataParallel(Noisy(), list(range(N)))
    of_net, of_ddp = sgd(net), sgd(ddp)
    total, z = Total(), Z[0]

    def step_of(net, optimizer):
        return jaxpar.train_step(net, optimizer, lambda net, *batch: jnp.float64(0))

    yield "an optimizer", lambda: step_of(net, of_net)(of_net, z), TypeError
    yield "wrapped in different ways", lambda: step_of(net, of_net)(ddp, z), ValueError
    yield "wrapped in different ways", lambda: step_of((net, other), (of_net, of_net)), ValueError
    yield "wrapped in different ways", lambda: jaxpar.eval_step(net)(ddp, z), ValueError
    yield "2 net.s. and 1 optimizer", lambda: step_of((net, net), of_net), ValueError
    yield "0 net.s.", lambda: step_of((), ()), ValueError
    yield (
        "not made for this DataParallel and DataParallel",
        lambda: step_of((net, net), (of_net, of_ddp)),
        jaxpar.errors.OptimizerError,
    )
    yield "Total is an argument", lambda: step_of(ddp, of_ddp)(total, z), TypeError
    yield "Total is an argument", lambda: net(z, total), TypeError
    yield (
        "1 losses for 2 networks",
        lambda: jaxpar.train_step((net, net), (of_net, of_net), lambda nets, x: (jnp.float64(0),))(z),
        jaxpar.errors.LossError,
    )
    yield "net must be an nnx.Module", lambda: step_of((net, 1), (of_net, of_net)), TypeError


def test_what_cannot_stand_together_is_refused():
    for says, run, kind in refused():
        with pytest.raises(kind, match=says):
            run()


def test_several_networks_are_not_trained_inside_of_no_sync():
    nets = tuple(jaxpar.DistributedDataParallel(ours, list(range(N))) for ours, _ in twins())
    step = jaxpar.train_step(nets, tuple(map(sgd, nets)), rebuild)
    with nets[1].no_sync(), pytest.raises(RuntimeError, match="several networks are trained together"):
        step(X[0], Z[0])


def test_objects_are_found_in_containers_and_once():
    rngs, net = nnx.Rngs(0), Noisy()
    args, kwargs, objects = set_aside(({"a": [rngs, X]}, nnx.List([X])), {"b": rngs, "c": net})
    assert objects == (rngs, net)
    assert len(jax.tree.leaves((args, kwargs))) == 2
    assert set_aside((X,), {"y": Z}) == ((X,), {"y": Z}, ())


# ---------------------------------------------------------------------------------------- processes

TOGETHER = """
import jax, numpy as np, optax
from flax import nnx
import jaxpar

jaxpar.distributed.init_process_group(timeout=60)
rank, world = jaxpar.distributed.get_rank(), jaxpar.distributed.get_world_size()
random = np.random.RandomState(0)
X, Z = (np.split(random.randn(8, n), world)[rank] for n in (3, 2))

class Net(nnx.Module):
    def __init__(self, i, o, rngs):
        self.a = nnx.Linear(i, 4, rngs=rngs, param_dtype=float)
        self.norm = jaxpar.nn.BatchNorm(4, param_dtype=float)
        self.b = nnx.Linear(4, o, rngs=rngs, param_dtype=float)
    def __call__(self, x, rngs=None):
        x = self.b(jax.numpy.tanh(self.norm(self.a(x))))
        return x if rngs is None else x + jax.random.normal(rngs(), x.shape, float)

def sgd(net):  # Adam makes steps of the noise that a bias before a BatchNorm has for a gradient
    return nnx.Optimizer(net, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)

def of_d(d, g, x, z):
    return ((d(x) - 1) ** 2).mean() + (d(jax.lax.stop_gradient(g(z))) ** 2).mean()

def both(nets, rngs, x, z):
    g, d = nets
    return ((d(g(z, rngs)) - 1) ** 2).mean(), of_d(d, g, x, z)

g = jaxpar.DistributedDataParallel(Net(2, 3, nnx.Rngs(0)))
d = jaxpar.DistributedDataParallel(Net(3, 1, nnx.Rngs(1)))
alone, together = jaxpar.train_step(d, sgd(d), of_d), jaxpar.train_step((g, d), (sgd(g), sgd(d)), both)
rngs = nnx.Rngs(7)
for i in range(3):
    print("numbers", *map(float, (alone(g, X, Z), *together(rngs, X, Z))))
print("numbers", *(float(np.abs(x).sum()) for net in (g, d) for x in jax.tree.leaves(nnx.state(net))))
print("count", int(rngs.default.count[...]))
jaxpar.distributed.destroy_process_group()
"""


@pytest.mark.long
@pytest.mark.slow
def test_two_processes_are_one_with_as_many_devices():
    def numbers(text):
        assert re.search("^count 3$", text, re.MULTILINE)
        return [float(x) for line in re.findall("^numbers (.*)$", text, re.MULTILINE) for x in line.split()]

    (alone,) = map(numbers, outputs(ranks(1, TOGETHER, devices=4)))
    for said in map(numbers, outputs(ranks(2, TOGETHER, devices=2))):
        np.testing.assert_allclose(said, alone, rtol=1e-10, atol=1e-13)
