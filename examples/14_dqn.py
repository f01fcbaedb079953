"""A network that learns to play: DQN, on a cart that balances a pole.

What is new: no data set. The game is in this file; what was played lies in a buffer, from which batches
are drawn; and a second net, a copy that is renewed now and then, says what the rest of a game is worth.
One row or a batch, `DataParallel` takes both. All is in the checkpoint, buffer and game too: after
Ctrl-C, `--run DIR` goes on with the same moves.

With `--torch` both learn from the same batches, which jaxpar's net has played: if each played by itself,
the first move that differs would make two games of one, and there would be nothing to compare.

The game is CartPole (Barto, Sutton and Anderson 1983) with the constants of Gymnasium's CartPole-v1.

    python examples/14_dqn.py                      # on GPUs, or on virtual devices
    python examples/14_dqn.py --torch --float64    # beside torch's own nn.DataParallel
    python examples/14_dqn.py --width 256 --batch-size 512 --steps 50000
"""

import argparse
import math
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxpar
from jaxpar.nn.functional import smooth_l1_loss

parser = argparse.ArgumentParser(description="DQN on CartPole.")
parser.add_argument("--devices", type=int, default=4, help="virtual devices, where there is no GPU")
parser.add_argument("--steps", type=int, default=3000, help="batches to learn from; a move before each")
parser.add_argument("--batch-size", type=int, default=50)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--buffer", type=int, default=10000, help="moves that are remembered")
parser.add_argument("--renew", type=int, default=40, help="steps between two copies to the second net")
parser.add_argument("--run", help="folder of checkpoint and log, to go on from; a fresh one if left out")
parser.add_argument("--torch", action="store_true", help="train torch's twin on the first 50 batches, too")
parser.add_argument("--float64", action="store_true")
options = parser.parse_args()

jaxpar.virtual_devices(options.devices)  # before anything makes an array; GPUs are used where there are any
jax.config.update("jax_enable_x64", options.float64)
dtype = np.float64 if options.float64 else np.float32
run = options.run or tempfile.mkdtemp()
DISCOUNT, W = 0.95, options.width


# -------------------------------------------------------------------------------------------- game
class CartPole:
    """Position, speed, angle, angular speed; a push to the left (0) or to the right (1)."""

    def __init__(self, random):
        self.random = random
        self.begin()

    def begin(self):
        self.state, self.moves = self.random.uniform(-0.05, 0.05, 4), 0

    def state_dict(self):
        return {"state": self.state.tolist(), "moves": self.moves}

    def load_state_dict(self, kept):
        self.state, self.moves = np.array(kept["state"]), kept["moves"]

    def move(self, action):
        """What is seen then, whether the pole fell, whether the game is over."""
        x, v, angle, turn = self.state
        cos, sin = math.cos(angle), math.sin(angle)
        push = ((10.0 if action else -10.0) + 0.05 * turn**2 * sin) / 1.1
        turning = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        moving = push - 0.05 * turning * cos / 1.1
        self.state = np.array([x + 0.02 * v, v + 0.02 * moving, angle + 0.02 * turn, turn + 0.02 * turning])
        self.moves += 1
        fell = bool(abs(self.state[0]) > 2.4 or abs(self.state[2]) > math.radians(12))
        return self.state, fell, fell or self.moves == 500


# -------------------------------------------------------------------------------------------- model
class Net(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(a, b, rngs=rngs) for a, b in ((4, W), (W, W), (W, 2))])

    def __call__(self, x):
        for layer in self.layers[:-1]:
            x = nnx.relu(layer(x))
        return self.layers[-1](x)


def loss_of(net, seen, action, target):
    worth = jnp.take_along_axis(net(seen), action[:, None], 1)[:, 0]
    return smooth_l1_loss(worth, target)


net = jaxpar.DataParallel(jaxpar.to(Net(nnx.Rngs(0)), dtype=dtype))
second = nnx.clone(net)


def renew():
    """The second net becomes the first; copies, because train_step gives the arrays themselves away."""
    nnx.update(second, jax.tree.map(jnp.copy, nnx.state(net)))


renew()
tx = optax.chain(jaxpar.optim.clip_grad_value(100.0), jaxpar.optim.adamw(lr=3e-3, amsgrad=True))
optimizer = nnx.Optimizer(net, tx, wrt=nnx.Param)
worth = jaxpar.eval_step(net)
target = jaxpar.eval_step(
    second, lambda net, reward, then, fell: reward + DISCOUNT * net(then).max(1) * (1 - fell)
)
step = jaxpar.train_step(net, optimizer, loss_of)


# ------------------------------------------------------------------------------------------ playing
def play(epsilon):
    """One move, remembered; how many the game had if it is over then."""
    seen = game.state.astype(dtype)
    guess = random.rand() < epsilon
    action = random.randint(2) if guess else int(np.asarray(worth(seen[None])).argmax())
    then, fell, over = game.move(action)
    for name, value in {"seen": seen, "action": action, "reward": 1, "then": then, "fell": fell}.items():
        memory[name][memory["count"] % M] = value
    memory["count"] += 1
    moves = game.moves
    if over:
        game.begin()
    return moves if over else None


def batch():
    rows = random.randint(min(M, memory["count"]), size=options.batch_size)
    return [memory[name][rows] for name in ("seen", "action", "reward", "then", "fell")]


M = options.buffer
memory = {
    "seen": np.zeros((M, 4), dtype),
    "action": np.zeros(M, np.int32),
    "reward": np.zeros(M, dtype),
    "then": np.zeros((M, 4), dtype),
    "fell": np.zeros(M, dtype),
    "count": 0,
}
random = np.random.RandomState(0)
game = CartPole(random)


# ------------------------------------------------------------------------------------ the same in torch
def torch_twin(net):
    """A function that trains torch's net, which begins with the same weights, on a batch."""
    import copy

    import torch

    from torch_ref import pretend

    n = max(1, jaxpar.device_count())  # one CPU device does not count
    torch.set_default_dtype(torch.float64 if options.float64 else torch.float32)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(a, b) for a, b in ((4, W), (W, W), (W, 2)))

        def forward(self, x):
            for layer in self.layers[:-1]:
                x = torch.relu(layer(x))
            return self.layers[-1](x)

    theirs = Net()
    theirs.load_state_dict(jaxpar.parity.to_torch(net, like=theirs))
    second = copy.deepcopy(theirs)
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=3e-3, amsgrad=True)

    def step(seen, action, reward, then, fell, due):
        with pretend(n) as devices:  # n GPUs, or as if there were n
            ids, device = list(range(n)), devices.device
            net = torch.nn.DataParallel(theirs.to(device), device_ids=ids)
            rest = torch.nn.DataParallel(second.to(device), device_ids=ids)
            seen, action, reward, then, fell = (
                torch.tensor(x).to(device) for x in (seen, action, reward, then, fell)
            )
            worth = net(seen).gather(1, action.long()[:, None])[:, 0]
            with torch.no_grad():
                target = reward + DISCOUNT * rest(then).max(1).values * (1 - fell)
            loss = torch.nn.functional.smooth_l1_loss(worth, target)
            optimizer.zero_grad()
            loss.backward()
        torch.nn.utils.clip_grad_value_(theirs.parameters(), 100.0)
        optimizer.step()
        if due:
            second.load_state_dict(theirs.state_dict())
        return loss.item()

    return step


# ----------------------------------------------------------------------------------------- training
items = {"net": net, "optimizer": optimizer, "second": second, "random": random, "game": game}
with jaxpar.Checkpointer(run, save_every=1000) as checkpointer, jaxpar.MetricsLog(run) as log:
    done, stopped = 0, False
    if checkpointer.latest_step() is not None:
        done, trees = checkpointer.restore(**items, memory=memory)
        memory = {name: np.array(x) if np.ndim(x) else x for name, x in trees["memory"].items()}
        log.resume_from(done + 1)
    if done and options.torch:
        parser.error("--torch begins at the first step: give another folder to --run")
    twin = torch_twin(net.module) if options.torch else None
    while memory["count"] < options.batch_size:
        play(epsilon=1)
    bar = jaxpar.progress(range(done + 1, options.steps + 1), description="playing")
    try:
        for done in bar:
            moves = play(epsilon=max(0.05, 1 - done / 1000))
            if moves is not None:
                bar.show(moves=moves)
                log.log(done, moves=moves)
            seen, action, *known = batch()
            loss = step(seen, action, target(*known))
            log.log(done, loss=loss)
            due = done % options.renew == 0
            if due:
                renew()
            if twin and done <= 50:
                log.log(done, torch=twin(seen, action, *known, due))
            checkpointer.save(done, **items, memory=memory)
    except KeyboardInterrupt:
        stopped = True
    checkpointer.wait()
    if checkpointer.latest_step() != done:
        checkpointer.save(done, force=True, **items, memory=memory)
if stopped:
    print(f"stopped after step {done}; to go on: --run {run}")
    sys.exit(130)

# ------------------------------------------------------------------------------------------- results
if options.torch:
    curves = jaxpar.MetricsLog.read(run)
    apart = np.nanmax(np.abs(curves["loss"] - curves["torch"]))
    print(f"losses of jaxpar and torch over {min(50, done)} steps: largest difference {apart:.1e}")


def mean_of_games(epsilon, games=5):
    lengths = []
    game.begin()
    while len(lengths) < games:
        if (moves := play(epsilon)) is not None:
            lengths.append(moves)
    return np.mean(lengths)


play_on, at_random = mean_of_games(0), mean_of_games(1, 50)
print(f"the pole stands for {play_on:.0f} moves of at most 500; with moves at random for {at_random:.0f}")
