"""What gpt_mesh_plain.py does, with its step made by jaxpar over the mesh's data axis."""

import jax
import jax.numpy as jnp
import optax
from common import batches, cast, main, sentences
from flax import nnx
from jax import P

import jaxpar

VOCABULARY, LENGTH, WIDTH, HEADS, LAYERS = 32, 16, 32, 4, 2


class Attention(nnx.Module):
    def __init__(self, rngs):
        self.qkv = nnx.Linear(WIDTH, 3 * WIDTH, use_bias=False, rngs=rngs)
        self.out = nnx.Linear(WIDTH, WIDTH, use_bias=False, rngs=rngs)

    def __call__(self, x):
        q, k, v = jnp.moveaxis(self.qkv(x).reshape(*x.shape[:2], 3, HEADS, -1), 2, 0)
        scores = jnp.einsum("bthd,bshd->bhts", q, k) / q.shape[-1] ** 0.5
        causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf))
        return self.out(jnp.einsum("bhts,bshd->bthd", weights, v).reshape(x.shape))


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm1, self.norm2 = (nnx.LayerNorm(WIDTH, use_bias=False, rngs=rngs) for _ in range(2))
        self.attention = Attention(rngs)
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, use_bias=False, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, use_bias=False, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(nnx.gelu(self.up(self.norm2(x))))


class GPT(nnx.Module):
    def __init__(self, dtype, rngs):
        self.tokens = nnx.Embed(VOCABULARY, WIDTH, param_dtype=dtype, rngs=rngs)
        self.positions = nnx.Embed(LENGTH, WIDTH, param_dtype=dtype, rngs=rngs)
        self.blocks = nnx.List(Block(rngs) for _ in range(LAYERS))
        self.norm = nnx.LayerNorm(WIDTH, use_bias=False, rngs=rngs)

    def __call__(self, tokens):
        x = self.tokens(tokens) + self.positions(jnp.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.tokens.attend(self.norm(x))


def split(model, mesh):
    """Return the model with its MLPs split over "model"."""

    def put(variable, *axes):
        variable.set_value(jax.device_put(variable[...], jax.NamedSharding(mesh, P(*axes))))

    for block in model.blocks:
        put(block.up.kernel, None, "model")
        put(block.down.kernel, "model", None)
    return model


def loss_fn(model, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()


def train(dtype="float32"):
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    text = sentences(512, LENGTH + 1, VOCABULARY)
    cosine = optax.warmup_cosine_decay_schedule(0.0, 3e-3, 4, 100, 3e-4)
    tx = optax.adamw(lambda count: cosine(jnp.asarray(count, dtype)), b2=0.95)
    with jax.set_mesh(mesh):
        model = GPT(dtype, nnx.Rngs(0))
        nnx.update(model, cast(nnx.state(model), dtype))
        model = jaxpar.DataParallel(split(model, mesh), mesh=mesh, axis="data")
        optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
        train_step = jaxpar.train_step(model, optimizer, loss_fn)
        for x, y in batches(16, text[:, :-1], text[:, 1:]):
            yield train_step(x, y), model


if __name__ == "__main__":
    main(train)
