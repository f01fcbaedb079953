"""While parity compares, another thread sees JAX's, Flax's and torch's own functions, and their results."""

from __future__ import annotations

import threading
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from jaxpar import parity

torch = pytest.importorskip("torch")
from torch.nn import functional  # noqa: E402

X = np.random.RandomState(0).randn(2, 3, 4)

OWN: dict[str, Callable[[], object]] = {
    "jax.nn.dot_product_attention": lambda: jax.nn.dot_product_attention,
    "jax.nn.softmax": lambda: jax.nn.softmax,
    **{
        f"nnx.{kind.__name__}": lambda kind=kind: kind.__call__
        for kind in (nnx.Linear, nnx.Dropout, nnx.MultiHeadAttention, nnx.LinearGeneral)
    },
    "linen.Dense": lambda: linen.Dense.__call__,
    **{
        name: lambda name=name: getattr(functional, name)
        for name in ("dropout", "scaled_dot_product_attention", "multi_head_attention_forward")
    },
    "x64": lambda: jax.config.jax_enable_x64,
    "matmul precision": lambda: jax.config.jax_default_matmul_precision,
    "torch's default type": torch.get_default_dtype,
    "numpy's errors": lambda: str(np.geterr()),
}


class Other(threading.Thread):
    """Looks at what belongs to everybody, and trains models of the compared classes."""

    def __init__(self) -> None:
        super().__init__()
        self.ended, self.ready = threading.Event(), threading.Event()
        self.looks = self.steps = 0
        self.changed: set[str] = set()

    def run(self) -> None:
        jax.config.update("jax_enable_x64", jax.config.jax_enable_x64)  # its own value, whatever main has
        models = FlaxBlock(), TorchBlock().eval()
        first = {name: look() for name, look in OWN.items()}
        results = step(*models)
        self.ready.set()
        while not self.ended.is_set():
            for name, look in OWN.items():
                if look() is not first[name] and look() != first[name]:
                    self.changed.add(name)
            self.looks += 1
            if self.looks % 200 == 0:
                same = [a.tobytes() == b.tobytes() for a, b in zip(step(*models), results, strict=True)]
                self.changed |= set() if all(same) else {"results"}
                self.steps += 1


def step(flax: nnx.Module, torch_module: torch.nn.Module) -> list[np.ndarray]:
    """Gradients of both, without compiling, so that every function is looked up again."""
    flax.eval()
    x = jnp.asarray(X, jnp.float32)
    gradients = nnx.grad(lambda net: (net(x) ** 2).sum())(flax)
    torch_module.zero_grad()
    (torch_module(torch.tensor(X, dtype=torch.float32)) ** 2).sum().backward()
    theirs = [p.grad.numpy().copy() for p in torch_module.parameters()]
    return [*map(np.asarray, jax.tree.leaves(gradients)), *theirs]


class TorchBlock(torch.nn.Module):
    """Attention that drops inside torch's own function, by one of its two ways."""

    def __init__(self, weights: bool = False):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True)
        self.plain = torch.nn.MultiheadAttention(4, 2, batch_first=True)
        self.fc, self.weights = torch.nn.Linear(4, 4), weights

    def forward(self, x):
        x = self.attention(x, x, x, need_weights=self.weights)[0]
        return self.fc(self.plain(x, x, x, need_weights=False)[0])


class FlaxBlock(nnx.Module):
    def __init__(self, weights: bool = False):
        rngs = nnx.Rngs(0)
        self.attention = nnx.MultiHeadAttention(2, 4, decode=False, rngs=rngs)
        self.plain = nnx.MultiHeadAttention(2, 4, decode=False, rngs=rngs)
        self.drop, self.fc, self.weights = nnx.Dropout(0.5, rngs=rngs), nnx.Linear(4, 4, rngs=rngs), weights

    def __call__(self, x):
        q, k, v = self.attention.query(x), self.attention.key(x), self.attention.value(x)
        scores = jax.nn.softmax(jnp.einsum("btnh,bsnh->bnts", q, k) * q.shape[-1] ** -0.5)
        folded = scores.reshape(-1, *scores.shape[2:]) if self.weights else scores  # torch's way
        scores = self.drop(folded).reshape(scores.shape)
        return self.fc(self.plain(self.attention.out(jnp.einsum("bnts,bsnh->btnh", scores, v))))


class LinenDense(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(4, name="fc")(x)


class TorchDense(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x)


@pytest.fixture
def other():
    thread = Other()
    thread.start()
    assert thread.ready.wait(60)
    yield thread
    thread.ended.set()
    thread.join()


@pytest.mark.slow
def test_another_thread_sees_everybodys_own(other):
    torch.manual_seed(0)
    for weights in (False, True):
        assert parity.compare(TorchBlock(weights), FlaxBlock(weights), X).same
    assert parity.compare(TorchDense(), LinenDense(), X).same
    found = parity.compare(TorchBlock(), FlaxBlock(), X, weights="own")
    assert found.divergence.candidate == "attention"
    other.ended.set()
    other.join()
    assert other.changed == set()
    assert other.looks > 500
    assert other.steps > 1


@pytest.mark.full
def test_what_another_thread_replaces_is_seen(other, monkeypatch):
    original = jax.nn.dot_product_attention
    monkeypatch.setattr(
        jax.nn, "dot_product_attention", lambda *args, **kwargs: 1 + original(*args, **kwargs)
    )
    looks, steps = other.looks, other.steps
    while other.looks < looks + 5 or other.steps < steps + 2:
        other.ended.wait(0.01)
    assert other.changed == {"jax.nn.dot_product_attention", "results"}


@pytest.mark.parametrize("weights", [False, True])
def test_dropout_inside_of_torchs_attention_is_passed_on(weights):
    torch.manual_seed(0)
    assert parity.compare(TorchBlock(weights), FlaxBlock(weights), X).same
    wrong = FlaxBlock(weights)
    wrong.drop.rate = 0.25
    assert not parity.compare(TorchBlock(weights), wrong, X).same
