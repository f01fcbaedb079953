"""Do two commits train the same, to the last bit? Prints a digest of fifteen small trainings.

    python benchmarks/digests.py > before.txt     # at one commit
    python benchmarks/digests.py | diff before.txt -    # at another one

Each configuration trains for 20 steps; the digest covers every loss, the parameters, the statistics, the
random streams and the optimizer's state. Only public names are used, so that old commits can run it.
Digests are those of one machine and one set of versions. It takes about three minutes.
"""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import warnings

import jaxpar

RANKS = "--rank" in sys.argv  # a process of a job with two ranks
jaxpar.virtual_devices(2 if RANKS else 4)
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from flax import linen, nnx  # noqa: E402

from jaxpar import comm_hooks  # noqa: E402

warnings.filterwarnings("ignore", "train_step: this is the third shape")  # uneven batches are meant

STEPS = 20
RANDOM = np.random.RandomState(0)
X, Y = RANDOM.randn(STEPS, 24, 6).astype(np.float32), RANDOM.randn(STEPS, 24, 3).astype(np.float32)


class Net(nnx.Module):
    def __init__(self, seed: int = 0):
        rngs = nnx.Rngs(seed)
        self.hidden = nnx.Linear(6, 40, rngs=rngs)
        self.norm = jaxpar.nn.BatchNorm(40)
        self.drop = nnx.Dropout(0.2, rngs=rngs)
        self.out = nnx.Linear(40, 3, rngs=rngs)

    def __call__(self, x):
        return self.out(self.drop(jnp.tanh(self.norm(self.hidden(x)))))


class LinenNet(linen.Module):
    @linen.compact
    def __call__(self, x):
        y = linen.BatchNorm(False)(linen.Dense(40)(x))
        return linen.Dense(3)(jnp.tanh(y))


def mse(net, x, y):
    return ((net(x) - y) ** 2).mean()


def sizes(even: bool) -> list[int]:
    return [24] * STEPS if even else [24, 21, 22, 24, 17] * (STEPS // 5)


class Digest:
    """A running digest of trees of arrays."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()

    def add(self, *trees) -> None:
        for x in jax.tree.leaves(trees):
            if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
                x = jax.random.key_data(x)
            x = np.asarray(x)
            self._sha.update(f"{x.dtype}{x.shape}".encode() + x.tobytes())

    def text(self) -> str:
        return self._sha.hexdigest()[:24]


def trained(net, *, even=True, tx=None, rows=None, **options) -> Digest:
    """`train_step` for STEPS calls."""
    digest = Digest()
    optimizer = nnx.Optimizer(net, tx or optax.adam(1e-2), wrt=nnx.Param)
    step = jaxpar.train_step(net, optimizer, mse, **options)
    for i, B in enumerate(sizes(even) if rows is None else rows):
        digest.add(step(X[i, :B], Y[i, :B]))
    digest.add(nnx.state(net), nnx.state(optimizer))
    return digest


def plain():
    return trained(Net())


def data_parallel_even():
    return trained(jaxpar.DataParallel(Net()))


def data_parallel_uneven():
    return trained(jaxpar.DataParallel(Net()), even=False)


def distributed_even():
    return trained(jaxpar.DistributedDataParallel(Net()))


def distributed_uneven():
    return trained(jaxpar.DistributedDataParallel(Net()), even=False)


def pmap():
    digest = trained(jaxpar.DataParallel(Net(), backend="pmap"), even=False)
    digest.add(trained(jaxpar.DistributedDataParallel(Net(), backend="pmap"), even=False).text().encode())
    return digest


def accumulate():
    digest = Digest()
    for net in (Net(), jaxpar.DataParallel(Net()), jaxpar.DistributedDataParallel(Net())):
        digest.add(np.frombuffer(trained(net, accumulate=3, even=False).text().encode(), np.uint8))
    return digest


def float16():
    precision = jaxpar.Precision("float16", growth_interval=3)
    digest = Digest()
    for net in (Net(), jaxpar.DataParallel(Net()), jaxpar.DistributedDataParallel(Net())):
        digest.add(np.frombuffer(trained(net, precision=precision).text().encode(), np.uint8))
    return digest


def hooks():
    digest = Digest()
    for hook in (comm_hooks.powersgd(start_powersgd_iter=4), comm_hooks.bf16_compress, comm_hooks.allreduce):
        net = jaxpar.DistributedDataParallel(Net(), comm_hook=hook)
        digest.add(np.frombuffer(trained(net, even=False).text().encode(), np.uint8))
    return digest


def by_value_and_grad(net, loss_fn, digest, even=False):
    optimizer = nnx.Optimizer(net, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)
    for i, B in enumerate(sizes(even)):
        loss, gradients = net.value_and_grad(loss_fn)(X[i, :B], Y[i, :B])
        optimizer.update(net, gradients)
        digest.add(loss)
    digest.add(nnx.state(net), nnx.state(optimizer))


def value_and_grad_no_sync():
    digest = Digest()
    net = jaxpar.DistributedDataParallel(Net())
    by_value_and_grad(net, mse, digest)
    for i in range(STEPS):
        rows = X[i], Y[i]
        if i % 3 < 2:
            with net.no_sync():
                digest.add(net.value_and_grad(mse)(*rows)[0])
        else:
            digest.add(net.value_and_grad(mse)(*rows))
    return digest


def linen_modules():
    digest = Digest()
    for wrapper in (jaxpar.DataParallel, jaxpar.DistributedDataParallel):
        net = wrapper(LinenNet())
        variables = net.init(jax.random.key(0), X[0])
        for i, B in enumerate(sizes(False)):
            (loss, updates), gradients = linen_gradients(net, variables, X[i, :B], Y[i, :B])
            params = jax.tree.map(lambda p, g: p - 0.1 * g, variables["params"], gradients)
            variables = {**variables, **updates, "params": params}
            digest.add(loss)
        digest.add(variables)
    return digest


def linen_gradients(net, variables, x, y):
    if isinstance(net, jaxpar.DistributedDataParallel):
        return net.value_and_grad(mse, mutable=["batch_stats"])(variables, x, y)

    def loss_fn(params):
        out, updates = net.apply({**variables, "params": params}, x, mutable=["batch_stats"])
        return ((out - y) ** 2).mean(), updates

    return jax.value_and_grad(loss_fn, has_aux=True)(variables["params"])


def functions():
    digest = Digest()
    net = jaxpar.DistributedDataParallel(lambda p, x: jnp.tanh(x @ p["a"]) @ p["b"])
    p = {"a": jnp.asarray(RANDOM.randn(6, 5), jnp.float32), "b": jnp.asarray(RANDOM.randn(5, 3), jnp.float32)}
    for i, B in enumerate(sizes(False)):
        loss, gradients = net.value_and_grad(mse)(p, X[i, :B], Y[i, :B])
        p = jax.tree.map(lambda p, g: p - 0.1 * g, p, gradients)
        digest.add(loss)
    digest.add(p)
    return digest


def evaluation():
    digest = Digest()
    for net in (Net(), jaxpar.DataParallel(Net()), jaxpar.DistributedDataParallel(Net())):
        evaluate = jaxpar.eval_step(net)
        digest.add([evaluate(X[i, :B]) for i, B in enumerate(sizes(False))])
    return digest


# ------------------------------------------------------------------------------ of two processes


def two_processes(rank: int):
    half = slice(12 * rank, 12 * rank + 12)
    digest = Digest()
    for options in ({}, {"accumulate": 2}, {"precision": jaxpar.Precision("float16", growth_interval=3)}):
        net = jaxpar.DistributedDataParallel(Net())
        optimizer = nnx.Optimizer(net, optax.adam(1e-2), wrt=nnx.Param)
        step = jaxpar.train_step(net, optimizer, mse, **options)
        for i in range(STEPS):
            digest.add(step(X[i, half], Y[i, half]))
        digest.add(nnx.state(net), nnx.state(optimizer))
    return digest


def two_processes_join(rank: int):
    digest = Digest()
    net = jaxpar.DistributedDataParallel(Net())
    optimizer = nnx.Optimizer(net, optax.adam(1e-2), wrt=nnx.Param)
    step = jaxpar.train_step(net, optimizer, mse)
    with net.join():
        for i in range(STEPS - 3 * rank):
            B = 5 + (i + rank) % 7
            digest.add(step(X[i, :B], Y[i, :B]))
    digest.add(nnx.state(net), nnx.state(optimizer))
    other = jaxpar.DistributedDataParallel(Net())
    optimizer = nnx.Optimizer(other, optax.sgd(0.1), wrt=nnx.Param)
    with other.join():
        for i in range(STEPS - 2 * (1 - rank)):
            loss, gradients = other.value_and_grad(mse)(X[i, : 6 + rank], Y[i, : 6 + rank])
            optimizer.update(other, gradients)
            digest.add(loss)
    digest.add(nnx.state(other))
    return digest


def two_processes_hooks(rank: int):
    half = slice(12 * rank, 12 * rank + 12)
    digest = Digest()
    net = jaxpar.DistributedDataParallel(Net(), comm_hook=comm_hooks.powersgd(start_powersgd_iter=4))
    optimizer = nnx.Optimizer(net, optax.adam(1e-2), wrt=nnx.Param)
    step = jaxpar.train_step(net, optimizer, mse)
    for i in range(STEPS):
        digest.add(step(X[i, half], Y[i, half]))
    digest.add(nnx.state(net), nnx.state(optimizer))
    return digest


OF_ONE = [
    plain,
    data_parallel_even,
    data_parallel_uneven,
    distributed_even,
    distributed_uneven,
    pmap,
    accumulate,
    float16,
    hooks,
    value_and_grad_no_sync,
    linen_modules,
    functions,
    evaluation,
]
OF_TWO = [two_processes, two_processes_join, two_processes_hooks]


def as_a_rank() -> None:
    jaxpar.distributed.init_process_group()
    rank = jaxpar.distributed.get_rank()
    for case in OF_TWO:
        print(f"{case.__name__} rank {rank}", case(rank).text(), flush=True)
    jaxpar.distributed.destroy_process_group()


def start_ranks() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "JAX_PLATFORMS": "cpu"}
    inherited = {k: v for k, v in os.environ.items() if "PJRT_NPROC" not in k}
    started = [
        subprocess.Popen(
            [sys.executable, __file__, "--rank"],
            env=inherited | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    texts = [process.communicate()[0] for process in started]
    ours = [case.__name__ for case in OF_TWO]  # gloo prints too
    print(*(line for text in texts for line in text.splitlines() if line.split(" ")[0] in ours), sep="\n")
    if any(process.returncode for process in started):
        sys.exit("a rank failed")


if __name__ == "__main__":
    if RANKS:
        as_a_rank()
    else:
        for case in OF_ONE:
            print(case.__name__, case().text(), flush=True)
        start_ranks()
