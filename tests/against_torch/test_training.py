"""20 training steps of DataParallel, number by number, against PyTorch's own DataParallel.

Every step: outputs, loss, parameter gradients, input gradients, buffers, weights; float64, 1e-10.
The reference is torch's DataParallel on as many (pretend) devices, never the whole-batch model:
with BatchNorm that one is something else.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from comparing import assert_equal_trees
from flax import nnx

import jaxpar

torch = pytest.importorskip("torch")
from twins import TWINS, Twin, copy_weights, flax_variables, layout  # noqa: E402

import torch_ref  # noqa: E402

torch.set_num_threads(1)

STEPS = 20
BATCHES = {
    # N: even, uneven, fewer rows than devices, one row
    1: (4, 1),
    2: (4, 5, 1),
    3: (6, 7, 2, 1),
    4: (8, 10, 3, 1),
    8: (16, 13, 5, 1),
}
QUICK = {(2, 1), (4, 10)}
USUAL = {(1, 5), (8, 13)}
CASES = [
    pytest.param(
        N, B, marks=() if (N, B) in QUICK else pytest.mark.slow if (N, B) in USUAL else pytest.mark.long
    )
    for N, batches in BATCHES.items()
    for B in batches
]


def to_torch(x: np.ndarray, images: bool):
    return torch.tensor(np.ascontiguousarray(x.transpose(0, 3, 1, 2)) if images else x)


def from_torch(x, images: bool) -> np.ndarray:
    x = x.detach().numpy()
    return x.transpose(0, 2, 3, 1) if images else x


def torch_run(twin: Twin, net, batches, device) -> list[dict[str, dict]]:
    """The reference's numbers, step by step, under jaxpar's names."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    record = []
    for batch in batches:
        inputs = [to_torch(x, twin.images).to(device) for x in batch]
        floats = [x for x in inputs if x.is_floating_point()]
        for x in floats:
            x.requires_grad_()
        outputs = net(*inputs)
        leaves = jax.tree.leaves(outputs)
        loss = sum((y**2 + torch.sin(y)).mean() for y in leaves)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        named = {n.replace("module.", ""): p for n, p in net.named_parameters()}
        buffers = {n.replace("module.", ""): b for n, b in net.named_buffers()}
        record.append(
            {
                "outputs": {str(i): y.detach().cpu().numpy() for i, y in enumerate(leaves)}
                | {"loss": loss.detach().cpu().numpy()},
                "gradients": {twin.names[n]: layout(n, p.grad.cpu().numpy()) for n, p in named.items()},
                "input gradients": {
                    str(i): from_torch(x.grad.cpu(), twin.images) for i, x in enumerate(floats)
                },
                "buffers": {twin.names[n]: b.clone().cpu().numpy() for n, b in buffers.items()},
                "weights": {
                    twin.names[n]: layout(n, p.detach().clone().cpu().numpy()) for n, p in named.items()
                },
            }
        )
    return record


@nnx.jit
def flax_step(net, optimizer, inputs):
    def objective(net, inputs):
        outputs = net(*inputs)
        return sum((y**2 + jnp.sin(y)).mean() for y in jax.tree.leaves(outputs)), outputs

    integer = not jnp.issubdtype(inputs[0].dtype, jnp.floating)
    wrt = nnx.DiffState(0, nnx.Param) if integer else (nnx.DiffState(0, nnx.Param), 1)
    (loss, outputs), gradients = nnx.value_and_grad(objective, argnums=wrt, has_aux=True)(net, inputs)
    gradients, by_input = (gradients, ()) if integer else gradients
    optimizer.update(net, gradients)
    return loss, outputs, gradients, by_input


def by_path(state) -> dict[str, np.ndarray]:
    flat = nnx.to_flat_state(state)
    return {".".join(map(str, p)).replace("module.", ""): np.asarray(v.get_value()) for p, v in flat}


def flax_run(net, batches, N) -> list[dict[str, dict]]:
    optimizer = nnx.Optimizer(net, optax.sgd(0.05, momentum=0.9), wrt=nnx.Param)
    # Where the first step puts things; without this the second step is compiled again.
    everywhere = jaxpar.Placement(tuple(jaxpar.devices()[:N])).replicated
    nnx.update((net, optimizer), jax.device_put(nnx.state((net, optimizer)), everywhere))
    record = []
    for batch in batches:
        loss, outputs, gradients, by_input = flax_step(net, optimizer, tuple(map(jnp.asarray, batch)))
        values = flax_variables(net)
        record.append(
            {
                "outputs": {str(i): y for i, y in enumerate(jax.tree.leaves(outputs))} | {"loss": loss},
                "gradients": by_path(gradients),
                "input gradients": {str(i): g for i, g in enumerate(by_input)},
                "buffers": {p: np.asarray(v[...]) for p, v in values.items() if not isinstance(v, nnx.Param)},
                "weights": {p: np.asarray(v[...]) for p, v in values.items() if isinstance(v, nnx.Param)},
            }
        )
    return record


def compare_runs(got: list[dict], want: list[dict]) -> None:
    for step, (a, b) in enumerate(zip(got, want, strict=True)):
        for part in b:
            here = {
                k: v.astype(np.int64) if np.asarray(v).dtype.kind == "i" else v for k, v in a[part].items()
            }
            assert_equal_trees(f"step {step}: {part}", here, b[part])


def batches_for(twin: Twin, B: int) -> list[tuple[np.ndarray, ...]]:
    random = np.random.RandomState(B)
    return [twin.inputs(random, B) for _ in range(STEPS)]


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize(("N", "B"), CASES)
@pytest.mark.parametrize("name", TWINS)
def test_training_equals_torch(name, N, B):
    twin, ids = TWINS[name], list(range(N))
    batches = batches_for(twin, B)
    # With one device the module is called as it is and no backend is asked.
    nets = [
        twin.flax_net(functools.partial(jaxpar.DataParallel, device_ids=ids, backend=backend))
        for backend in ("shard_map", "pmap")[:N]
    ]
    torch.manual_seed(1)
    with torch_ref.pretend(N) as devices:
        net = twin.torch_net(lambda m: torch.nn.DataParallel(m, ids)).double()
        for flax_net in nets:
            copy_weights(twin, net, flax_net)
        want = torch_run(twin, net.to(devices.device), batches, devices.device)
    for flax_net in nets:
        compare_runs(flax_run(flax_net, batches, N), want)


# ------------------------------------------------------------------------------------ planted faults


def plant_chunks(monkeypatch):
    """numpy's split instead of torch.chunk's: 10 rows on 4 devices become 3, 3, 2, 2."""
    from jaxpar._parallel import scatter as _scatter

    def array_split(B, N):
        return tuple(len(part) for part in np.array_split(np.arange(B), N))

    monkeypatch.setattr(_scatter, "chunk_sizes", array_split)


def plant_buffers(monkeypatch):
    """The mean of all replicas' statistics instead of replica 0's."""
    from jaxpar._parallel import parallel_apply as _parallel_apply

    monkeypatch.setattr(_parallel_apply, "from_replica_zero", lambda tree, i: jax.lax.pmean(tree, "replica"))


def plant_padding(monkeypatch):
    """Every replica gets the padded number of rows."""
    from jaxpar._parallel import parallel_apply as _parallel_apply

    def padded(inputs, kwargs):
        return [tuple(shapes[0] for shapes in inputs.shapes)] * len(inputs)

    monkeypatch.setattr(_parallel_apply, "_kinds", padded)


@pytest.mark.parametrize("plant", [plant_chunks, plant_buffers, plant_padding])
def test_a_planted_fault_is_found(plant, monkeypatch):
    plant(monkeypatch)
    jaxpar.clear_caches()
    try:
        with pytest.raises(AssertionError, match=r"step \d+: \w+"):
            test_training_equals_torch("cnn", 4, 10)
    finally:
        jaxpar.clear_caches()


@pytest.mark.full
def test_a_whole_batch_model_is_another_thing():
    """Where BatchNorm is involved the unsplit model is no reference: it is not close."""
    twin = TWINS["cnn"]
    batches = batches_for(twin, 8)[:1]
    net = twin.torch_net(lambda m: m).double()
    flax_net = twin.flax_net(lambda m: jaxpar.DataParallel(m, [0, 1, 2, 3]))
    copy_weights(twin, net, flax_net)
    with pytest.raises(AssertionError, match="step 0: outputs"):
        compare_runs(flax_run(flax_net, batches, 4), torch_run(twin, net, batches, "cpu"))
