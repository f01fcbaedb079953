"""What ppo_plain.py does, with its batches shared out over all devices."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from common import cast, main
from flax.training.train_state import TrainState

import jaxpar

ACTORS, STEPS = 16, 8


class Corridors:
    """Each actor looks for the end of a corridor; an episode begins anew there."""

    def __init__(self, seed=0):
        self.random = np.random.RandomState(seed)
        self.position = self.random.randint(8, size=ACTORS)

    def observe(self, dtype):
        return np.eye(8, dtype=dtype)[self.position]

    def act(self, actions):
        self.position = np.clip(self.position + 2 * actions - 1, 0, 7)
        done = self.position == 7
        self.position = np.where(done, self.random.randint(7, size=ACTORS), self.position)
        return done - 0.1, done


class ActorCritic(nn.Module):
    actions: int = 2

    @nn.compact
    def __call__(self, x):
        x = nn.tanh(nn.Dense(32)(x))
        return nn.log_softmax(nn.Dense(self.actions)(x)), nn.Dense(1)(x)


@functools.partial(jax.jit, static_argnums=0)
def policy_action(apply_fn, params, states):
    return apply_fn({"params": params}, states)


def advantages_of(rewards, running, values, discount=0.99, decay=0.95):
    advantages, following = np.zeros_like(rewards), 0.0
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + discount * values[t + 1] * running[t] - values[t]
        advantages[t] = following = delta + discount * decay * running[t] * following
    return advantages


def loss_fn(params, apply_fn, minibatch, clip):
    states, actions, old_log_probs, returns, advantages = minibatch
    log_probs, values = policy_action(apply_fn, params, states)
    value_loss = ((returns - values[:, 0]) ** 2).mean()
    entropy = -(jnp.exp(log_probs) * log_probs).sum(1).mean()
    ratios = jnp.exp(jnp.take_along_axis(log_probs, actions[:, None], 1)[:, 0] - old_log_probs)
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    clipped = advantages * jnp.clip(ratios, 1 - clip, 1 + clip)
    return -jnp.minimum(ratios * advantages, clipped).mean() + 0.5 * value_loss - 0.01 * entropy


@functools.partial(jax.jit, static_argnums=2)
def train_step(state, trajectories, rows, clip):
    total = 0.0
    minibatches = jax.tree.map(lambda x: x.reshape(-1, rows, *x.shape[1:]), trajectories)
    for minibatch in zip(*minibatches, strict=True):
        loss, gradients = jax.value_and_grad(loss_fn)(state.params, state.apply_fn, minibatch, clip)
        state, total = state.apply_gradients(grads=gradients), total + loss
    return state, total


def collect(state, world, random, dtype):
    states, actions, log_probs, rewards, running, values = [], [], [], [], [], []
    for _ in range(STEPS):
        states.append(world.observe(dtype))
        log_prob, value = jax.device_get(policy_action(state.apply_fn, state.params, states[-1]))
        actions.append((random.rand(ACTORS) < np.exp(log_prob[:, 1])).astype(np.int32))
        reward, done = world.act(actions[-1])
        log_probs.append(np.take_along_axis(log_prob, actions[-1][:, None], 1)[:, 0])
        (
            rewards.append(reward.astype(dtype)),
            running.append(1 - done.astype(dtype)),
            values.append(value[:, 0]),
        )
    values.append(np.asarray(policy_action(state.apply_fn, state.params, world.observe(dtype))[1])[:, 0])
    advantages = advantages_of(np.stack(rewards), np.stack(running), np.stack(values))
    columns = states, actions, log_probs, advantages + np.stack(values[:-1]), advantages
    return tuple(np.concatenate(column) for column in columns)


def train(dtype="float32"):
    model = jaxpar.DataParallel(ActorCritic())
    params = cast(model.init(jax.random.key(0), jnp.ones((1, 8)))["params"], dtype)
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(2.5e-3))
    world, random = Corridors(), np.random.RandomState(1)
    while True:
        trajectories = collect(state, world, random, dtype)
        for _ in range(2):
            order = random.permutation(ACTORS * STEPS)
            state, loss = train_step(state, tuple(x[order] for x in trajectories), 32, 0.1)
            yield loss, state.params


if __name__ == "__main__":
    main(train)
