"""An embedding on the CPU, a recurrent network on an accelerator, one training through both.

What it adds: OnDevice and each_device. A large table stays in the host's memory; only the vectors that
a batch needs travel. The gradient goes back the same way, and one optimizer holds all parameters.

    python examples/02_cpu_and_gpu.py            # without a GPU the last virtual device stands for it
"""

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxpar

jaxpar.virtual_devices(4)
GPU = jaxpar.device_count() - 1
TEXT = "the cat sat on the mat the dog sat on the log a cat and a dog"
WORDS = TEXT.split()
VOCABULARY = sorted(set(WORDS))


class NextWord(nnx.Module):
    def __init__(self, rngs):
        self.embedding = jaxpar.OnDevice(nnx.Embed(len(VOCABULARY), 16, rngs=rngs), "cpu")
        cell = nnx.OptimizedLSTMCell(16, 32, rngs=rngs)
        self.recurrent = jaxpar.OnDevice(
            nnx.Sequential(nnx.RNN(cell), nnx.Linear(32, len(VOCABULARY), rngs=rngs)), GPU
        )

    def __call__(self, tokens):
        x = self.embedding(tokens)
        x = jaxpar.cuda(x, GPU)  # x = x.cuda(0) in torch
        return self.recurrent(x)


def loss_fn(net, tokens, following):
    return optax.softmax_cross_entropy_with_integer_labels(net(tokens), following).mean()


tokens = np.array([[VOCABULARY.index(word) for word in WORDS]], np.int32)
inputs, following = tokens[:, :-1], jaxpar.cuda(tokens[:, 1:], GPU)
net = NextWord(nnx.Rngs(0))
# each_device: optax updates a tree in one go, and JAX does not mix arrays of two devices.
optimizer = nnx.Optimizer(net, jaxpar.each_device(optax.adam(0.02)), wrt=nnx.Param)

for step in range(30):
    loss, gradients = nnx.value_and_grad(loss_fn)(net, inputs, following)
    optimizer.update(net, gradients)
    if step % 10 == 0 or step == 29:
        print(f"step {step:2}: loss {loss:.4f}")

right = (jnp.argmax(net(inputs), -1) == following).mean()
print("embedding on", jaxpar.device_of(net.embedding), "- recurrent part on", jaxpar.device_of(net.recurrent))
print(f"next word right: {right:.0%}")
