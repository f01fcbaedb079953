"""replicated: what holds no rows goes to every replica whole, the same under every wrapper."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from comparing import assert_equal_numbers
from flax import linen, nnx
from processes import outputs, ranks

import jaxpar
from jaxpar import errors
from jaxpar._parallel import program
from jaxpar._parallel.replicated import Replicated

C, IDS = 4, [0, 1, 2, 3]
MASK = np.random.RandomState(1).randn(C, C)
TABLE = np.random.RandomState(2).randn(C)
KINDS = {
    "mask": MASK,
    "device mask": jnp.asarray(MASK),
    "table": TABLE,
    "number on the device": jnp.float64(0.7),
    "raw key": jax.random.PRNGKey(3),
    "key": jax.random.key(4),
    "nothing": np.zeros((0, C)),
    "float": 0.3,
    "int": 2,
    "text": "twice",
    "None": None,
    "bool": True,
    "nested": {"mask": MASK, "more": [TABLE, {"key": jax.random.key(5)}, 0.5, None, "x"]},
}
ROWS = (8, 10, 2)  # even, uneven, and fewer than devices


def is_array(x):
    return isinstance(x, (jax.Array, np.ndarray))


def close(got, want):
    """Equal trees of arrays, at 1e-10."""
    pairs = zip(jax.tree.leaves_with_path(got), jax.tree.leaves_with_path(want), strict=True)
    for (path, a), (other, b) in pairs:
        assert path == other
        assert_equal_numbers(jax.tree_util.keystr(path), a, b)


def marked(kind):
    """The kind with its arrays marked one by one; a nested one as a whole."""
    return jaxpar.replicated(kind) if is_array(kind) or isinstance(kind, dict) else kind


def whole(y, kind):
    """y [b, C] with every leaf of the kind, as only the complete leaf does it."""
    for leaf in jax.tree.leaves(kind):
        if not is_array(leaf):
            y = y * (len(leaf) if isinstance(leaf, str) else leaf + 1)
        elif leaf.dtype == np.uint32 or jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            y = y + jax.random.normal(leaf, (C,), y.dtype)
        elif leaf.ndim == 1:
            y = y + leaf[::-1]
        else:
            y = y @ leaf if leaf.size == C * C else y * (1 + leaf.sum())
    return y


class Net(nnx.Module):
    def __init__(self):
        self.inner = nnx.Linear(3, C, rngs=nnx.Rngs(0), param_dtype=jnp.float64)

    def __call__(self, x, kind=None):
        return jnp.tanh(whole(self.inner(x), kind))


class LinenNet(linen.Module):
    @linen.compact
    def __call__(self, x, kind=None):
        return jnp.tanh(whole(linen.Dense(C, param_dtype=jnp.float64)(x), kind))


def rows(B, seed=0):
    return np.random.RandomState(seed + B).randn(B, 3)


def floats(kind):
    return [x for x in jax.tree.leaves(kind) if is_array(x) and jnp.issubdtype(x.dtype, jnp.floating)]


def with_floats(kind, values):
    values = iter(values)

    def new(x):
        return next(values) if is_array(x) and jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(new, kind)


# ------------------------------------------------------------------------------------------ DataParallel


@pytest.mark.sampled(5)
@pytest.mark.parametrize("B", ROWS)
@pytest.mark.parametrize("name", KINDS)
def test_outputs_are_one_devices(name, B):
    kind, x, net = KINDS[name], rows(B), Net()
    want, wrapped = net(x, kind), jaxpar.DataParallel(net, IDS)
    close(wrapped(x, marked(kind)), want)
    close(wrapped(x, kind=marked(kind)), want)
    close(nnx.jit(lambda net, x: net(x, marked(kind)))(wrapped, x), want)
    close(jaxpar.data_parallel(net, (x, marked(kind)), IDS), want)
    close(jaxpar.DistributedDataParallel(net, IDS)(x, marked(kind)), want)


@pytest.mark.full
@pytest.mark.sampled(7)
@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("B", ROWS)
@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if floats(kind)])
def test_gradients_are_the_sum_over_the_replicas(name, B, staged):
    kind, x = KINDS[name], rows(B)

    def gradients(net, mark):
        graphdef, state = nnx.split(net)

        def loss(state, x, values):
            return (nnx.merge(graphdef, state)(x, mark(with_floats(kind, values))) ** 2).sum()

        gradient = jax.grad(loss, argnums=(0, 1, 2))
        return (jax.jit(gradient) if staged else gradient)(state, x, floats(kind))

    state, *others = gradients(jaxpar.DataParallel(Net(), IDS), marked)
    want, *wants = gradients(Net(), lambda kind: kind)
    close([nnx.to_pure_dict(state)["module"], others], [nnx.to_pure_dict(want), wants])


@pytest.mark.parametrize("name", KINDS)
def test_the_verbs(name):
    kind, x, net = KINDS[name], rows(10), Net()
    shards = jaxpar.scatter((x, marked(kind)), IDS)
    assert shards.sizes == (3, 3, 3, 1)
    for i, (piece, kept) in enumerate(shards):
        assert piece.shape[0] == shards.sizes[i]
        for got, want in zip(jax.tree.leaves(kept), jax.tree.leaves(kind), strict=True):
            assert not is_array(want) or got.devices() == {jaxpar.device(i)}
            close(whole(jnp.ones((1, C)), got), whole(jnp.ones((1, C)), want))
    replicas = jaxpar.replicate(net, IDS)
    close(jaxpar.gather(jaxpar.parallel_apply(replicas, shards)), net(x, kind))
    each = jaxpar.parallel_apply(list(replicas), [(x, marked(kind))] * 4)
    close(each, [net(x, kind)] * 4)


@pytest.mark.parametrize("name", ["mask", "key", "float", "nested"])
def test_linen(name):
    kind, x, net = KINDS[name], rows(10), LinenNet()
    wrapped = jaxpar.DataParallel(net, IDS)
    variables = wrapped.init(jax.random.key(0), x, marked(kind))
    close(variables["params"]["module"], net.init(jax.random.key(0), x, kind)["params"])
    want = net.apply({"params": variables["params"]["module"]}, x, kind)
    close(wrapped.apply(variables, x, marked(kind)), want)
    close(jax.jit(lambda variables: wrapped.apply(variables, x, marked(kind)))(variables), want)
    spread = jaxpar.DistributedDataParallel(net, IDS)
    close(spread.apply(spread.init(jax.random.key(0), x, marked(kind)), x, marked(kind)), want)


def test_an_uneven_batch_takes_the_masked_program(monkeypatch):
    united, found = program._united, []
    monkeypatch.setattr(program, "_united", lambda *args: found.append(united(*args)) or found[-1])
    jaxpar.DataParallel(Net(), IDS)(rows(10), marked(KINDS["nested"]))
    assert found != []
    assert None not in found


@pytest.mark.full
@pytest.mark.parametrize("B", [8, 10])
def test_the_other_backend(B):
    kind, x = KINDS["nested"], rows(B)
    close(jaxpar.DataParallel(Net(), IDS, backend="pmap")(x, marked(kind)), Net()(x, kind))
    want = jaxpar.DataParallel(noise, IDS)(x, jax.random.key(7))
    close(jaxpar.DataParallel(noise, IDS, backend="pmap")(x, jax.random.key(7)), want)


def test_one_cpu_device_passes_plain_arrays_through(monkeypatch):
    monkeypatch.setattr("jaxpar._devices.devices.devices", lambda: jax.devices()[:1])
    net = jaxpar.DataParallel(Net())
    assert net.device_ids == []
    close(net(rows(4), jaxpar.replicated(MASK)), Net()(rows(4), MASK))


def test_one_device():
    for ids in ([0], [2]):
        net = jaxpar.DataParallel(lambda x, m: x @ m, ids)
        close(net(np.ones((3, C)), jaxpar.replicated(MASK)), np.ones((3, C)) @ MASK)


def test_without_rows_every_replica_runs():
    outputs = jaxpar.data_parallel(lambda m: m.sum(0, keepdims=True), jaxpar.replicated(MASK), IDS)
    close(outputs, np.repeat(MASK.sum(0, keepdims=True), 4, axis=0))


def test_parts_of_a_marked_tree_are_marked():
    key, params = jax.random.PRNGKey(0), {"w": MASK, "more": [TABLE, MASK]}
    x = jaxpar.replicated((params, key))
    tree, seed = x
    assert set(tree) == {"w", "more"}
    parts = [tree["w"], *tree["more"], seed]
    assert all(isinstance(part, Replicated) for part in parts)

    def module(y, w, b, v, key):
        return y @ w @ v + b + jax.random.normal(key, (C,), y.dtype)

    y = np.random.RandomState(3).randn(10, C)
    close(jaxpar.DataParallel(module, IDS)(y, *parts), module(y, MASK, TABLE, MASK, key))
    with pytest.raises(IndexError):
        x[2]


@pytest.mark.parametrize("B", [2, 5])
def test_rows_and_the_same_array_marked(B):
    x = rows(B)
    close(jaxpar.data_parallel(lambda a, b: a @ b.T, (x, jaxpar.replicated(x)), IDS), x @ x.T)


def test_other_axes():
    x = rows(6).T
    shards = jaxpar.scatter((x, jaxpar.replicated(MASK), jaxpar.replicated(TABLE)), IDS[:2], dim=1)
    assert [tuple(a.shape for a in piece) for piece in shards] == [((3, 3), (C, C), (C,))] * 2


@pytest.mark.parametrize("source", [np.asarray, jnp.asarray])
def test_the_caller_may_write_into_a_marked_array(source):
    mask = MASK.copy()
    shards = jaxpar.scatter((rows(4), jaxpar.replicated(source(mask))), IDS)
    mask[:] = 0
    close(shards[1][1], MASK)


# ------------------------------------------------------------------------------------------ keys


def noise(x, key):
    return x + jax.random.normal(key, x.shape[1:], x.dtype)


class Noisy(nnx.Module):
    def __init__(self, seed):
        self.rngs = nnx.RngKey(jax.random.key(seed))

    def __call__(self, x):
        return noise(x, self.rngs[...])


@pytest.mark.full
@pytest.mark.parametrize("B", [8, 10, 2, 1])
def test_a_key_is_folded_as_the_streams_of_a_module(B):
    x = np.zeros((B, 3))
    want = jaxpar.DataParallel(Noisy(7), IDS)(x)
    close(jaxpar.data_parallel(noise, (x, jax.random.key(7)), IDS), want)
    close(jax.jit(jaxpar.DataParallel(noise, IDS))(x, jax.random.key(7)), want)
    shards = jaxpar.scatter((x, jax.random.key(7)), IDS)
    close(np.concatenate([noise(*piece) for piece in shards]), want)
    own = len({row.tobytes() for row in np.asarray(want)})
    assert own == len(shards)


@pytest.mark.full
def test_a_key_is_folded_in_a_step_as_the_streams_of_a_module():
    x = np.zeros((8, 3))

    def losses(wrap, net, *more):
        net = wrap(net, IDS)
        step = jaxpar.train_step(net, sgd(net), lambda net, x, *more: net(x, *more).sum())
        return float(step(x, *more))

    class Weighted(nnx.Module):
        def __init__(self, seed=None):
            self.w = nnx.Param(jnp.ones(3))
            self.noisy = None if seed is None else Noisy(seed)

        def __call__(self, x, key=None):
            return self.w * (self.noisy(x) if key is None else noise(x, key))

    for wrap in (jaxpar.DataParallel, jaxpar.DistributedDataParallel):
        close(losses(wrap, Weighted(), jax.random.key(7)), losses(wrap, Weighted(7)))


def test_a_batch_of_keys_is_rows():
    keys = jax.random.split(jax.random.key(0), 6)
    shards = jaxpar.scatter((rows(6), keys), IDS)
    got = np.concatenate([jax.random.key_data(piece[1]) for piece in shards])
    np.testing.assert_array_equal(got, jax.random.key_data(keys))


def test_a_marked_raw_key_of_a_batch_with_two_rows():
    raw = jax.random.PRNGKey(0)
    close(jaxpar.data_parallel(noise, (rows(2), jaxpar.replicated(raw)), IDS), noise(rows(2), raw))


# ------------------------------------------------------------------------------------------ steps


def sgd(net):
    return nnx.Optimizer(net, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)


def loss_of(net, x, kind):
    more = sum((leaf**2).sum() for leaf in floats(kind))  # the loss computes with them itself
    return (net(x, kind) ** 2).mean() + more


def marking_loss(net, x, kind):
    return loss_of(net, x, kind) + (net(x, kind=marked(kind)) ** 4).mean()


def plain_training(net, kinds, loss, sizes, steps=5):
    """Plain gradients of the mean over batches of these sizes, each with its kind, and updates."""
    optimizer, losses = sgd(net), []
    for t in range(steps):
        x = rows(sum(sizes), t)

        pieces = np.split(x, np.cumsum(sizes)[:-1])

        def mean(net, pieces=pieces):
            return sum(loss(net, *both) for both in zip(pieces, kinds, strict=False)) / len(sizes)

        value, gradients = nnx.value_and_grad(mean)(net)
        optimizer.update(net, gradients)
        losses.append(value)
    return losses, nnx.to_pure_dict(nnx.state(net, nnx.Param))


WRAPPERS = {
    "plain": lambda net: net,
    "DataParallel": lambda net: jaxpar.DataParallel(net, IDS),
    "DistributedDataParallel": lambda net: jaxpar.DistributedDataParallel(net, IDS),
}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("loss", [loss_of, marking_loss])
@pytest.mark.parametrize("B", [8, 10])
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_five_steps_are_one_devices(wrapper, name, B, loss):
    kind, net = KINDS[name], WRAPPERS[wrapper](Net())
    step = jaxpar.train_step(net, sgd(net), loss)
    losses = [step(rows(B, t), marked(kind)) for t in range(5)]
    sizes = {8: (2, 2, 2, 2), 10: (3, 3, 3, 1)}[B] if wrapper == "DistributedDataParallel" else (B,)
    wanted, params = plain_training(Net(), [kind] * 4, loss, sizes)
    trained = nnx.to_pure_dict(nnx.state(getattr(net, "module", net), nnx.Param))
    close((losses, trained), (wanted, params))


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("name", KINDS)
def test_evaluation_is_one_devices(name, wrapper):
    kind = KINDS[name]
    evaluate = jaxpar.eval_step(
        WRAPPERS[wrapper](Net()), lambda net, x, kind: net(x, marked(kind)) + net(x, kind)
    )
    close(evaluate(rows(10), marked(kind)), 2 * Net()(rows(10), kind))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("B", [8, 10])
@pytest.mark.parametrize("name", KINDS)
def test_value_and_grad_is_one_devices(name, B):
    kind, net = KINDS[name], jaxpar.DistributedDataParallel(Net(), IDS)
    value, gradients = net.value_and_grad(marking_loss)(rows(B), marked(kind))
    pieces = np.array_split(rows(B), 4) if B == 8 else np.split(rows(B), [3, 6, 9])
    one = Net()
    want = nnx.value_and_grad(lambda net: sum(marking_loss(net, x, kind) for x in pieces) / 4)(one)
    close((value, nnx.to_pure_dict(gradients)["module"]), (want[0], nnx.to_pure_dict(want[1])))


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_in_float32(wrapper):
    with jax.enable_x64(False):
        kind = jax.tree.map(lambda x: x.astype(np.float32) if is_array(x) else x, [MASK, TABLE, 0.5, "x"])
        single, net = (
            nnx.Linear(3, C, rngs=nnx.Rngs(0)),
            WRAPPERS[wrapper](nnx.Linear(3, C, rngs=nnx.Rngs(0))),
        )
        step = jaxpar.train_step(net, sgd(net), lambda net, x, kind: (whole(net(x), kind) ** 2).mean())
        plain = jaxpar.train_step(single, sgd(single), lambda net, x, kind: (whole(net(x), kind) ** 2).mean())
        for t in range(3):
            x = rows(8, t).astype(np.float32)
            np.testing.assert_allclose(
                step(x, jaxpar.replicated(kind)), plain(x, jaxpar.replicated(kind)), rtol=1e-5
            )


def test_a_shape_may_be_marked():
    net = WRAPPERS["DataParallel"](Net())
    step = jaxpar.train_step(net, sgd(net), loss_of)
    shape = jax.ShapeDtypeStruct
    step.lower(shape((8, 3), float), jaxpar.replicated(shape((C, C), float)))
    net = WRAPPERS["DistributedDataParallel"](Net())
    jaxpar.train_step(net, sgd(net), loss_of).lower(
        shape((8, 3), float), jaxpar.replicated(shape((C, C), float))
    )


def test_an_array_made_of_a_marked_one_has_no_mark():
    net = WRAPPERS["DataParallel"](Net())
    step = jaxpar.train_step(net, sgd(net), lambda net, x, mask: net(x, mask + 0).mean())
    with pytest.raises(errors.RowsError, match=r"inputs\[1\] has 4\. .*jaxpar\.replicated\(\.\.\.\)"):
        step(rows(8), jaxpar.replicated(MASK))
    step = jaxpar.train_step(net, sgd(net), lambda net, x, m: net(x, jaxpar.replicated(m + 0)).mean())
    step(rows(8), jaxpar.replicated(MASK))


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_rows_and_the_same_array_in_a_loss(wrapper):
    """`x` marked is the replica's rows in a DistributedDataParallel, and all rows in a DataParallel."""
    net = WRAPPERS[wrapper](Similar())
    step = jaxpar.train_step(net, sgd(net), lambda net, x: net(x, jaxpar.replicated(x)).sum())
    x = rows(8)
    pieces = np.split(x, 4) if wrapper == "DistributedDataParallel" else [x]
    close(float(step(x)), float(np.mean([(piece @ piece.T).sum() for piece in pieces])))


class Similar(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(jnp.ones(3))

    def __call__(self, x, table):
        return (self.w * x) @ table.T


def test_a_loss_that_marks_takes_the_masked_program(monkeypatch):
    united, found = program._united, []
    monkeypatch.setattr(program, "_united", lambda *args: found.append(united(*args)) or found[-1])
    net = WRAPPERS["DistributedDataParallel"](Net())
    net.value_and_grad(lambda net, x: net(jaxpar.replicated(x)).mean())(rows(10))
    assert found != []
    assert None not in found


def test_marks_end_with_the_loss():
    net = WRAPPERS["DataParallel"](Net())
    step = jaxpar.train_step(net, sgd(net), lambda net, x, mask: net(x, jaxpar.replicated(mask)).mean())
    step(rows(8), jaxpar.replicated(MASK))
    assert isinstance(jaxpar.replicated(MASK), Replicated)


def test_a_mark_changes_the_structure_of_a_batch():
    net = WRAPPERS["DataParallel"](Net())
    step = jaxpar.train_step(net, sgd(net), lambda net, x, m: (net(x) * m.mean()).mean())
    step(rows(8), jaxpar.replicated(TABLE))
    with pytest.raises(errors.BatchError, match="structure changed"):
        step(rows(8), rows(8))


# ------------------------------------------------------------------------------------------ transformations


@pytest.mark.full
def test_scan_vmap_and_gradients_of_marks():
    net = jaxpar.DataParallel(lambda x, m: x @ m, IDS)
    xs = np.random.RandomState(0).randn(3, 8, C)
    want = xs @ MASK
    scanned = jax.jit(lambda xs, m: jax.lax.scan(lambda _, x: (0, net(x, m)), 0, xs)[1])
    close(scanned(xs, jaxpar.replicated(MASK)), want)
    close(jax.vmap(net, in_axes=(0, None))(xs, jaxpar.replicated(MASK)), want)
    masks = np.stack([MASK, 2 * MASK, -MASK])
    close(jax.vmap(net)(xs, jaxpar.replicated(masks)), xs @ masks)
    gradient = jax.grad(lambda m: net(xs[0], m).sum())(jaxpar.replicated(MASK))
    close(gradient.value, jax.grad(lambda m: (xs[0] @ m).sum())(MASK))
    checkpointed = jax.checkpoint(lambda x, m: net(x, m).sum())
    close(jax.jit(jax.grad(checkpointed, 1))(xs[0], jaxpar.replicated(MASK)).value, gradient.value)


# ------------------------------------------------------------------------------------------ loaders


def test_prefetch_sends_a_marked_array_to_every_device():
    batches = [(rows(8, t), jaxpar.replicated(MASK)) for t in range(3)]
    for t, (x, mask) in enumerate(jaxpar.data.prefetch(batches, IDS)):
        assert mask.value.sharding.is_fully_replicated
        assert len(mask.value.devices()) == 4
        close(jaxpar.data_parallel(lambda x, m: x @ m[:3], (x, mask), IDS), rows(8, t) @ MASK[:3])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_keeps_marks(workers):
    loader = jaxpar.data.DataLoader(rows(8), 4, collate_fn=with_mask, num_workers=workers)
    for x, mask in jaxpar.data.prefetch(loader, IDS):
        close(jaxpar.data_parallel(lambda x, m: x @ m[:3], (x, mask), IDS), np.asarray(x) @ MASK[:3])


def with_mask(samples):
    return np.stack(samples), jaxpar.replicated(MASK)


# ------------------------------------------------------------------------------------------ refused


def test_what_cannot_be_sent():
    gone = jnp.ones(3)
    gone.delete()
    with pytest.raises(errors.DeletedError, match=r"inputs\[1\]\['m'\] \(float"):
        jaxpar.scatter((rows(4), {"m": jaxpar.replicated(gone)}), IDS)
    with pytest.raises(errors.LeafError, match=r"inputs\[1\]\['m'\] has dtype"):
        jaxpar.scatter((rows(4), jaxpar.replicated({"m": np.array(["a"])})), IDS)
    torch = pytest.importorskip("torch")
    with pytest.raises(errors.LeafError, match=r"inputs\[1\] is a torch\.Tensor"):
        jaxpar.scatter((rows(4), jaxpar.replicated(torch.zeros(4))), IDS)


@pytest.mark.parametrize("thing", [nnx.Rngs(0), {"net": Net()}])
def test_modules_and_streams_are_not_marked(thing):
    with pytest.raises(TypeError, match=r"replicated: (Rngs|Net) is not an array"):
        jaxpar.replicated(thing)


def test_errors_name_the_mark():
    with pytest.raises(errors.NoRowsError, match=r"pass jaxpar\.replicated\(\.\.\.\)"):
        jaxpar.scatter((rows(4), jnp.float64(2)), IDS)
    with pytest.raises(errors.RowsError, match=r"jaxpar\.replicated\(\.\.\.\)\.\n"):
        jaxpar.scatter((rows(4), MASK[:3]), IDS)
    with pytest.raises(
        errors.RowsError, match=r"replicated\(\.\.\.\)\. .*raw key.*jax\.random\.wrap_key_data"
    ):
        jaxpar.scatter((rows(4), jax.random.PRNGKey(0)), IDS)


# ------------------------------------------------------------------------------------------ processes

PROCESSES = """
import sys
sys.path.insert(0, "tests")
import jaxpar
jaxpar.distributed.init_process_group(timeout=60)
import numpy as np
from test_replicated import DISTRIBUTED, MASK, SIZES, marked, number_in_join, trained
from jaxpar import errors

rank = jaxpar.distributed.get_rank()
for name, argument in DISTRIBUTED.items():
    for sizes in SIZES:
        B = sum(sizes)
        losses, kernel = trained(argument, slice(rank * B // 2, (rank + 1) * B // 2), B)
        print(name, sizes, *losses, *kernel, sep="|")
for what, argument in {
    "number": [0.5, 0.6][rank],
    "text": ["a", "bc"][rank],
    "shape": marked(MASK[: rank + 3]),
    "mark": [np.ones((4, 4)), marked(np.ones((2, 4)))][rank],
}.items():
    try:
        trained(argument, slice(0, 4), 4)
    except errors.DivergenceError as error:
        print(what, error, sep="|")
print("join", *number_in_join(2 + rank), sep="|")
jaxpar.distributed.destroy_process_group()
"""
SIZES = [(2, 2, 2, 2), (3, 2, 3, 2)]  # of the replicas, two in each process
LONE = jax.random.key(9)
DISTRIBUTED = {name: marked(KINDS[name]) for name in ("mask", "raw key", "float", "text", "nested")}
DISTRIBUTED["lone key"] = LONE


def trained(argument, part, B):
    """Three steps with this part of every batch; the losses and the kernel."""
    net = jaxpar.DistributedDataParallel(Net())
    step = jaxpar.train_step(net, sgd(net), loss_of)
    losses = [float(step(rows(B, t)[part], argument)) for t in range(3)]
    return losses, np.asarray(net.module.inner.kernel[...]).ravel().tolist()


def number_in_join(steps):
    """The losses of steps with a number that is another one in each."""
    net = jaxpar.DistributedDataParallel(Net())
    step = jaxpar.train_step(net, sgd(net), loss_of)
    with net.join():
        return [float(step(rows(4, t), t + 0.5)) for t in range(steps)]


@pytest.mark.long
@pytest.mark.slow
def test_two_processes():
    said = outputs(ranks(2, PROCESSES, devices=2))
    said = [[line.split("|") for line in out.splitlines() if "|" in line] for out in said]
    cases = [(name, sizes) for name in DISTRIBUTED for sizes in SIZES]
    for lines in said:
        for (name, sizes), (case, shown, *numbers) in zip(cases, lines, strict=False):
            assert (case, shown) == (name, str(sizes))
            kinds = [jax.random.fold_in(LONE, i) if name == "lone key" else KINDS[name] for i in range(4)]
            losses, params = plain_training(Net(), kinds, loss_of, sizes, 3)
            wanted = [*map(float, losses), *np.asarray(params["inner"]["kernel"]).ravel().tolist()]
            close([*map(float, numbers)], wanted)
        texts = {what: more[0] for what, *more in lines[len(cases) :]}
        assert "the batch's other arguments: rank 0 has 0.5, rank 1 has 0.6" in texts["number"]
        assert "the batch's other arguments: rank 0 has 'a', rank 1 has 'bc'" in texts["text"]
        assert "the batch's shapes" in texts["shape"]
        assert "the batch's structure" in texts["mark"]
    short, long = ([*map(float, lines[-1][1:])] for lines in said)
    assert (len(short), len(long)) == (2, 3)
    close(short, long[:2])
