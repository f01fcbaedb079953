"""A network that learns to play: DQN, on a cart that balances a pole.

What it adds: there is no data set. What was played lies in a buffer, from which batches are drawn, and a
second net, a copy renewed now and then, says what the rest of a game is worth. DataParallel takes both,
a single row to choose a move and a batch to learn from.

The game is CartPole (Barto, Sutton and Anderson 1983) with the constants of Gymnasium's CartPole-v1.

    python examples/14_dqn.py
"""

import collections
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxpar
from jaxpar.nn.functional import smooth_l1_loss

jaxpar.virtual_devices(4)  # without a GPU; with GPUs these are used
STEPS, BATCH, RENEW, DISCOUNT = 3000, 50, 40, 0.95


def push(state, action):
    """Position, speed, angle, angular speed after a push to the left (0) or to the right (1)."""
    x, v, angle, turn = state
    cos, sin = math.cos(angle), math.sin(angle)
    force = ((10.0 if action else -10.0) + 0.05 * turn**2 * sin) / 1.1
    turning = (9.8 * sin - cos * force) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    moving = force - 0.05 * turning * cos / 1.1
    return np.array([x + 0.02 * v, v + 0.02 * moving, angle + 0.02 * turn, turn + 0.02 * turning], np.float32)


class Net(nnx.Module):
    def __init__(self, width, rngs):
        sizes = ((4, width), (width, width), (width, 2))
        self.layers = nnx.List([nnx.Linear(a, b, rngs=rngs) for a, b in sizes])

    def __call__(self, x):
        for layer in self.layers[:-1]:
            x = nnx.relu(layer(x))
        return self.layers[-1](x)


def loss_fn(net, seen, action, target):
    return smooth_l1_loss(jnp.take_along_axis(net(seen), action[:, None], 1)[:, 0], target)


def target_fn(second, reward, then, fell):
    return reward + DISCOUNT * second(then).max(1) * (1 - fell)


net = jaxpar.DataParallel(Net(64, nnx.Rngs(0)))
second = jaxpar.DataParallel(Net(64, nnx.Rngs(0)))  # the same weights, on arrays of its own
tx = optax.chain(jaxpar.optim.clip_grad_value(100.0), jaxpar.optim.adamw(lr=3e-3, amsgrad=True))
optimizer = nnx.Optimizer(net, tx, wrt=nnx.Param)
step = jaxpar.train_step(net, optimizer, loss_fn)
worth, target = jaxpar.eval_step(net), jaxpar.eval_step(second, target_fn)

random = np.random.RandomState(0)
memory = collections.deque(maxlen=10000)  # (seen, action, reward, then, fell)


def play(epsilon):
    """A game of at most 500 moves; it yields after each, remembered."""
    state = random.uniform(-0.05, 0.05, 4).astype(np.float32)
    for _ in range(500):
        guess = random.rand() < epsilon
        action = random.randint(2) if guess else int(np.asarray(worth(state[None])).argmax())
        then = push(state, action)
        fell = abs(then[0]) > 2.4 or abs(then[2]) > math.radians(12)
        memory.append((state, np.int32(action), np.float32(1), then, np.float32(fell)))
        yield
        if fell:
            return
        state = then


done, games = 0, []
while done < STEPS:
    games.append(0)
    for _ in play(epsilon=max(0.05, 1 - done / 1000)):
        games[-1] += 1
        if len(memory) >= BATCH:
            rows = [memory[i] for i in random.randint(len(memory), size=BATCH)]
            seen, action, *known = (np.stack(column) for column in zip(*rows, strict=True))
            step(seen, action, target(*known))
            done += 1
            if done % RENEW == 0:  # copies, because the next step gives net's arrays away
                nnx.update(second, jax.tree.map(jnp.copy, nnx.state(net)))
    if len(games) % 10 == 0:
        print(f"{len(games)} games, {done} steps: {np.mean(games[-10:]):.0f} moves in each of the last 10")

trained, at_random = (np.mean([sum(1 for _ in play(epsilon)) for _ in range(20)]) for epsilon in (0, 1))
print(f"the pole stands for {trained:.0f} moves of at most 500; with moves at random for {at_random:.0f}")
