"""A small GPT over characters, with all that a long training needs, which writes some text at the end.

What it adds: everything at once. AdamW with two groups (matrices decay, biases and norms do not); a rate
that warms up and then follows a cosine; clipped gradients; `--bfloat16`, which computes in bfloat16 with
float32 parameters; a log and checkpoints, so that Ctrl-C loses nothing and `--run DIR` goes on; sampling
from the trained net. With `--torch` torch's own nn.DataParallel trains the same net beside it, from the
same weights on the same batches, and the largest difference of the losses is printed; `--float64` shows
that it is rounding.

The text is CPython's own reference, which `help()` shows: the module pydoc_data.topics (PSF License).

    python examples/12_gpt.py                      # on GPUs, or on virtual devices
    python examples/12_gpt.py --torch --float64    # beside torch
    python examples/12_gpt.py --bfloat16 --width 384 --layers 6 --length 256 --batch-size 64 --steps 5000
"""

import argparse
import sys
import tempfile
from pydoc_data.topics import topics

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxpar
from jaxpar.nn.functional import cross_entropy, scaled_dot_product_attention
from jaxpar.optim import lr_scheduler

parser = argparse.ArgumentParser(description="A character-level GPT.")
parser.add_argument("--devices", type=int, default=4, help="virtual devices, where there is no GPU")
parser.add_argument("--steps", type=int, default=250)
parser.add_argument("--batch-size", type=int, default=26)
parser.add_argument("--length", type=int, default=32, help="T, characters the net sees at once")
parser.add_argument("--text", type=int, default=43000, help="how many characters of the text are used")
parser.add_argument("--width", type=int, default=48)
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--bfloat16", action="store_true")
parser.add_argument("--run", help="folder of checkpoint and log, to go on from; a fresh one if left out")
parser.add_argument("--torch", action="store_true", help="train torch's twin on the first 50 batches, too")
parser.add_argument("--float64", action="store_true")
options = parser.parse_args()

jaxpar.virtual_devices(options.devices)  # without a GPU; with GPUs these are used
jax.config.update("jax_enable_x64", options.float64)
dtype = np.float64 if options.float64 else np.float32
run = options.run or tempfile.mkdtemp()
T, C, H = options.length, options.width, 4

# --------------------------------------------------------------------------------------------- data
text = "\n".join(topics[name] for name in sorted(topics))[: options.text]
letters = sorted(set(text))
V = len(letters)
codes = np.searchsorted(letters, list(text)).astype(np.int32)
rows = codes[: (len(codes) - 1) // T * T].reshape(-1, T)  # [n, T]
following = codes[1 : rows.size + 1].reshape(-1, T)
train, test = slice(0, -100), slice(-100, None)
data = jaxpar.data.TensorDataset(rows[train], following[train])
loader = jaxpar.data.DataLoader(data, batch_size=options.batch_size, shuffle=True, seed=0)


# -------------------------------------------------------------------------------------------- model
class Block(nnx.Module):
    def __init__(self, rngs):
        init = nnx.initializers.normal(0.02)
        self.norm1, self.norm2 = jaxpar.nn.LayerNorm(C), jaxpar.nn.LayerNorm(C)
        self.qkv = nnx.Linear(C, 3 * C, kernel_init=init, rngs=rngs)
        self.out = nnx.Linear(C, C, kernel_init=init, rngs=rngs)
        self.up = nnx.Linear(C, 4 * C, kernel_init=init, rngs=rngs)
        self.down = nnx.Linear(4 * C, C, kernel_init=init, rngs=rngs)

    def __call__(self, x):
        q, k, v = jnp.moveaxis(self.qkv(self.norm1(x)).reshape(*x.shape[:2], 3, H, C // H), (2, 3), (0, 2))
        y = scaled_dot_product_attention(q, k, v, is_causal=True)  # [B, H, T, C / H]
        x = x + self.out(jnp.moveaxis(y, 1, 2).reshape(x.shape))
        return x + self.down(nnx.gelu(self.up(self.norm2(x)), approximate=False))


class GPT(nnx.Module):
    def __init__(self, rngs):
        init = nnx.initializers.normal(0.02)
        self.token = nnx.Embed(V, C, embedding_init=init, rngs=rngs)
        self.position = nnx.Embed(T, C, embedding_init=init, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(options.layers)])
        self.norm = jaxpar.nn.LayerNorm(C)
        self.head = nnx.Linear(C, V, use_bias=False, kernel_init=init, rngs=rngs)

    def __call__(self, x):
        x = self.token.embedding[x] + self.position.embedding[...]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss_fn(net, x, t):
    return cross_entropy(net(x).reshape(-1, V), t.reshape(-1))


net = jaxpar.DataParallel(jaxpar.to(GPT(nnx.Rngs(0)), dtype=dtype))
RATE, WARM, COOL = 3e-3, 20, max(1, options.steps - 20)
warm = lr_scheduler.linear_lr(RATE, start_factor=0.05, total_iters=WARM)
cosine = lr_scheduler.cosine_annealing_lr(RATE, T_max=COOL, eta_min=RATE / 10)
rate = lr_scheduler.sequential_lr([warm, cosine], milestones=[WARM])
groups = [
    {"params": lambda path: path.endswith(("kernel", "embedding")), "weight_decay": 0.1},
    {"params": ..., "weight_decay": 0.0},
]
adamw = jaxpar.optim.param_groups(jaxpar.optim.adamw, groups, lr=rate, betas=(0.9, 0.95))
optimizer = nnx.Optimizer(net, optax.chain(jaxpar.optim.clip_grad_norm(1.0), adamw), wrt=nnx.Param)
precision = jaxpar.Precision("bfloat16") if options.bfloat16 else None
step = jaxpar.train_step(net, optimizer, loss_fn, precision=precision)


# ------------------------------------------------------------------------------------ the same in torch
def torch_twin(net):
    """A function that trains torch's net on a batch; it begins with the same weights."""
    import torch

    from torch_ref import pretend

    n = max(1, jaxpar.device_count())  # one CPU device does not count
    torch.set_default_dtype(torch.float64 if options.float64 else torch.float32)

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = torch.nn.LayerNorm(C), torch.nn.LayerNorm(C)
            self.qkv, self.out = torch.nn.Linear(C, 3 * C), torch.nn.Linear(C, C)
            self.up, self.down = torch.nn.Linear(C, 4 * C), torch.nn.Linear(4 * C, C)

        def forward(self, x):
            q, k, v = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, H, C // H).permute(2, 0, 3, 1, 4)
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(x.shape))
            return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))

    class GPT(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.token, self.position = torch.nn.Embedding(V, C), torch.nn.Embedding(T, C)
            self.blocks = torch.nn.ModuleList(Block() for _ in range(options.layers))
            self.norm, self.head = torch.nn.LayerNorm(C), torch.nn.Linear(C, V, bias=False)

        def forward(self, x):
            x = self.token(x) + self.position.weight
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    theirs = GPT()
    theirs.load_state_dict(jaxpar.parity.to_torch(net, like=theirs))
    groups = [
        {"params": [p for p in theirs.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in theirs.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95))
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.05, total_iters=WARM)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=COOL, eta_min=RATE / 10)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], milestones=[WARM])

    def step(x, t):
        with pretend(n) as devices:  # n GPUs, or a CPU that acts as n
            net = torch.nn.DataParallel(theirs.to(devices.device), device_ids=list(range(n)))
            x, t = torch.tensor(x).to(devices.device), torch.tensor(t).to(devices.device)
            loss = torch.nn.functional.cross_entropy(net(x).view(-1, V), t.view(-1).long())
            optimizer.zero_grad()
            loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        return loss.item()

    return step


# ----------------------------------------------------------------------------------------- training
def batches():
    while True:
        yield from loader


state = {"net": net, "optimizer": optimizer, "step": step, "loader": loader}
with jaxpar.Checkpointer(run, save_every=100) as checkpointer, jaxpar.MetricsLog(run) as log:
    done, stopped = 0, False
    if checkpointer.latest_step() is not None:
        done = checkpointer.restore(**state).step
        log.resume_from(done + 1)
    if done and options.torch:
        parser.error("--torch begins at the first step: give another folder to --run")
    twin = torch_twin(net.module) if options.torch else None
    bar = jaxpar.progress(range(done + 1, options.steps + 1), description="training")
    try:
        for done, (x, t) in zip(bar, batches(), strict=False):
            loss = step(x, t)
            bar.show(loss=loss)
            log.log(done, loss=loss)
            if twin and done <= 50:
                log.log(done, torch=twin(x, t))
            checkpointer.save(done, **state)
    except KeyboardInterrupt:
        stopped = True
    checkpointer.wait()
    if checkpointer.latest_step() != done:
        checkpointer.save(done, force=True, **state)
if stopped:
    print(f"stopped after step {done}; to go on: --run {run}")
    sys.exit(130)

# ------------------------------------------------------------------------------------------- results
if options.torch:
    curves = jaxpar.MetricsLog.read(run)
    apart = np.nanmax(np.abs(curves["loss"] - curves["torch"]))
    print(f"losses of jaxpar and torch over {min(50, done)} steps: largest difference {apart:.1e}")

logits = jaxpar.eval_step(net, lambda net, x, last: net(x)[:, last])
written, random = list(codes[:T]), np.random.RandomState(0)
for _ in range(120):
    scores = np.asarray(logits(np.array([written[-T:]], np.int32), T - 1), np.float64)[0]
    likely = np.exp((scores - scores.max()) / 0.7)
    written.append(random.choice(V, p=likely / likely.sum()))
print("".join(letters[code] for code in written[T:]))

loss = float(jaxpar.eval_step(net, loss_fn)(rows[test], following[test]))
counts = np.bincount(rows[train].ravel(), minlength=V) + 1
alone = -np.log(counts / counts.sum())[following[test]].mean()
print(
    f"other text: {loss / np.log(2):.2f} bits a character; from the frequencies alone {alone / np.log(2):.2f}"
)
