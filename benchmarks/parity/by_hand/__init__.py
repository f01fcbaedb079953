"""Bugs that a person makes, in ports of three models that no rule of the contract's edits was written for."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
BUGS: dict[str, tuple[str, str, str]] = {  # the model, a right text, and the wrong one
    "the head reads the last token": ("patches", "x[:, 0]", "x[:, -1]"),
    "no layer scale": ("patches", "x + self.gamma * self.fc2(hidden)", "x + self.fc2(hidden)"),
    "the block's norm after its attention": (
        "patches",
        "x + self.attention(self.norm1(x))",
        "self.norm1(x + self.attention(x))",
    ),
    "positions are not added": ("patches", "self.block(x + self.position)", "self.block(x)"),
    "the token behind the patches": ("patches", "[token, x]", "[x, token]"),
    "query, key and value are read by head": (
        "patches",
        "b, n, 3, self.heads, c // self.heads)\n        q, k, v = qkv.transpose(2, 0, 3, 1, 4)",
        "b, n, self.heads, 3, c // self.heads)\n        q, k, v = qkv.transpose(3, 0, 2, 1, 4)",
    ),
    "heads are not transposed back": (
        "patches",
        "(weights @ v).swapaxes(1, 2).reshape",
        "(weights @ v).reshape",
    ),
    "no residual around the feed-forward": (
        "patches",
        "return x + self.gamma * self.fc2(hidden)",
        "return self.gamma * self.fc2(hidden)",
    ),
    "the norm's epsilon of a different model": (
        "rotary",
        "jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-5)",
        "jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6)",
    ),
    "the sum for the mean of squares": (
        "rotary",
        "(x**2).mean(-1, keepdims=True)",
        "(x**2).sum(-1, keepdims=True)",
    ),
    "the halves turn the other way": ("rotary", "[-b, a]", "[b, -a]"),
    "rotary pairs are interleaved": (
        "rotary",
        "jnp.concatenate([angles, angles], axis=-1)",
        "jnp.repeat(angles, 2, axis=-1)",
    ),
    "a query does not see its own key": (
        "rotary",
        "jnp.ones((t, t), bool), 1)",
        "jnp.ones((t, t), bool), 0)\n        hidden = hidden.at[0, 0].set(False)",
    ),
    "keys are not rotated": (
        "rotary",
        "k = rotated(self.k(x).reshape(b, t, 1, 4).swapaxes(1, 2), cos, sin)",
        "k = self.k(x).reshape(b, t, 1, 4).swapaxes(1, 2)",
    ),
    "silu on the other branch": (
        "rotary",
        "nnx.silu(self.gate(y)) * self.up(y)",
        "self.gate(y) * nnx.silu(self.up(y))",
    ),
    "the cap without its division": (
        "rotary",
        "jnp.tanh(self.head(self.norm3(x)) / 30)",
        "jnp.tanh(self.head(self.norm3(x)))",
    ),
    "slope of the leaky relu by default": (
        "excited",
        "nnx.leaky_relu(self.depth(x), 0.1)",
        "nnx.leaky_relu(self.depth(x))",
    ),
    "pooling by SAME": ("excited", "padding=((1, 1), (1, 1))", 'padding="SAME"'),
    "maximum before mean": ("excited", "[x.mean((1, 2)), x.max((1, 2))]", "[x.max((1, 2)), x.mean((1, 2))]"),
    "the loss sums over rows": ("excited", "-chosen.mean()", "-chosen.sum()"),
}  # fmt: skip


def text(name: str, side: str, seed: int = 0) -> str:
    return (FOLDER / f"{name}_{side}.txt").read_text(encoding="utf-8").replace("SEED", str(seed))


def planted(bug: str) -> str:
    name, before, after = BUGS[bug]
    source = text(name, "jax")
    assert source.count(before) == 1, f"{bug}: {name} has the text {source.count(before)} times"
    return source.replace(before, after)
