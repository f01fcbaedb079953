"""A small transformer in torch and in Flax, each of whose operations can run in another type.

`types` has the type of an operation by name: embedding, scale, positions, norm, scores, softmax, residual,
mlp, activation, pooling, logits, loss; an operation that it lacks runs in float32.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import optax
import torch

Types = Mapping[str, str]
SYMBOLS = 11


class TorchNet(torch.nn.Module):
    def __init__(self, width: int, layers: int, types: Types, autocast: bool = False):
        super().__init__()
        self.types, self.autocast = types, autocast
        self.table = torch.nn.Embedding(SYMBOLS, width)
        self.blocks = torch.nn.ModuleList(TorchBlock(width, types) for _ in range(layers))
        self.head = torch.nn.Linear(width, SYMBOLS)

    def cast(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x.to(getattr(torch, self.types.get(name, "float32")))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        context = torch.autocast("cpu", torch.bfloat16) if self.autocast else contextlib.nullcontext()
        with context:
            x = torch.nn.functional.embedding(tokens, self.cast(self.table.weight, "embedding")).float()
            x = (self.cast(x, "scale") * 1.7).float()
            x = x + (self.cast(torch.arange(tokens.shape[1]).float(), "positions") * 0.125).float()[:, None]
            for block in self.blocks:
                x = block(x)
            x = self.cast(x, "pooling").mean(1).float()
            return self.cast(self.head(x), "logits").float()


class TorchBlock(torch.nn.Module):
    def __init__(self, width: int, types: Types):
        super().__init__()
        self.types = types
        self.norm = torch.nn.LayerNorm(width)
        self.query, self.key, self.value, self.up, self.down = (
            torch.nn.Linear(width, width) for _ in range(5)
        )

    def cast(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x.to(getattr(torch, self.types.get(name, "float32")))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        norm = (self.cast(tensor, "norm") for tensor in (x, self.norm.weight, self.norm.bias))
        values, weight, bias = norm
        h = torch.nn.functional.layer_norm(values, weight.shape, weight, bias, 1e-5).float()
        q, k, v = self.query(h), self.key(h), self.value(h)
        if "scores" in self.types or not torch.is_autocast_enabled("cpu"):
            q, k = self.cast(q, "scores"), self.cast(k, "scores")
        scores = (q @ k.mT).float()
        h = torch.softmax(self.cast(scores, "softmax"), -1).float() @ v
        x = (self.cast(x, "residual") + self.cast(h, "residual")).float()
        if "mlp" in self.types:
            kernel, bias = (self.cast(tensor, "mlp") for tensor in (self.up.weight, self.up.bias))
            h = torch.nn.functional.linear(self.cast(x, "mlp"), kernel, bias).float()
        else:
            h = self.up(x).float()
        h = torch.nn.functional.silu(self.cast(h, "activation")).float()
        return x + self.down(h)


class FlaxNet(nnx.Module):
    def __init__(self, width: int, layers: int, types: Types, dense: Any = None, memory: Any = jnp.float32):
        rngs = nnx.Rngs(0)
        self.types = types
        self.table = nnx.Embed(
            SYMBOLS, width, rngs=rngs, dtype=types.get("embedding", "float32"), param_dtype=memory
        )
        self.blocks = nnx.List([FlaxBlock(width, types, dense, memory) for _ in range(layers)])
        self.head = nnx.Linear(width, SYMBOLS, rngs=rngs, dtype=dense, param_dtype=memory)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.table(tokens).astype(jnp.float32)
        x = (x.astype(self.types.get("scale", "float32")) * 1.7).astype(jnp.float32)
        positions = jnp.arange(tokens.shape[1]).astype(self.types.get("positions", "float32"))
        x = x + (positions * 0.125).astype(jnp.float32)[:, None]
        for block in self.blocks:
            x = block(x)
        x = x.astype(self.types.get("pooling", "float32")).mean(1).astype(jnp.float32)
        return self.head(x).astype(self.types.get("logits", "float32")).astype(jnp.float32)


class FlaxBlock(nnx.Module):
    def __init__(self, width: int, types: Types, dense: Any, memory: Any):
        rngs = nnx.Rngs(0)
        self.types, self.dense = types, dense
        self.norm = nnx.LayerNorm(width, epsilon=1e-5, rngs=rngs, dtype=types.get("norm"), param_dtype=memory)
        options: dict[str, Any] = {"rngs": rngs, "param_dtype": memory}
        self.query, self.key, self.value, self.down = (
            nnx.Linear(width, width, dtype=dense, **options) for _ in range(4)
        )
        self.up = nnx.Linear(width, width, dtype=types.get("mlp", dense), **options)

    def __call__(self, x: jax.Array) -> jax.Array:
        types = self.types
        h = self.norm(x).astype(jnp.float32)
        q, k, v = self.query(h), self.key(h), self.value(h)
        products = types.get("scores", self.dense or "float32")
        preferred = types.get("accumulated")
        scores = jnp.einsum(
            "btc,bsc->bts", q.astype(products), k.astype(products), preferred_element_type=preferred
        )
        weights = jax.nn.softmax(scores.astype(types.get("softmax", "float32")))
        h = jnp.einsum("bts,bsc->btc", weights.astype(self.dense or "float32"), v)
        residual = types.get("residual", "float32")
        x = (x.astype(residual) + h.astype(residual)).astype(jnp.float32)
        h = nnx.silu(self.up(x).astype(types.get("activation", "float32"))).astype(jnp.float32)
        return x + self.down(h)


def torch_loss(types: Types) -> Any:
    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        dtype = getattr(torch, types.get("loss", "float32"))
        return torch.nn.functional.cross_entropy(logits.to(dtype), labels).float()

    return loss


def flax_loss(types: Types) -> Any:
    def loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
        rows = optax.softmax_cross_entropy_with_integer_labels(
            logits.astype(types.get("loss", "float32")), labels
        )
        return rows.mean().astype(jnp.float32)

    return loss
