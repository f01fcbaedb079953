"""parity.load_checkpoint and save_checkpoint: a run changes sides, and nobody can tell from its numbers."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxpar
from jaxpar import optim, parity
from jaxpar.errors import FileError, MatchError

torch = pytest.importorskip("torch")


class Theirs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Linear(3, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.head = torch.nn.Linear(4, 5)

    def forward(self, x):
        return self.head(torch.tanh(self.norm(self.stem(x))))


class Ours(nnx.Module):
    def __init__(self):
        given = {"rngs": nnx.Rngs(7), "param_dtype": jnp.float64}
        self.stem = nnx.Linear(3, 4, **given)
        self.norm = jaxpar.nn.BatchNorm(4, **given)
        self.head = nnx.Linear(4, 5, **given)

    def __call__(self, x):
        return self.head(jnp.tanh(self.norm(self.stem(x))))


X = np.random.RandomState(0).randn(6, 3)
PAIRS = {
    "adamw": (lambda p: torch.optim.AdamW(p, lr=1e-2), lambda: optim.adamw(lr=1e-2), None),
    "sgd": (
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda: optim.sgd(lr=0.1, momentum=0.9),
        2,
    ),
}


def torch_steps(model, optimizer, n):
    for _ in range(n):
        optimizer.zero_grad()
        (model(torch.tensor(X)) ** 3).mean().backward()
        optimizer.step()


@nnx.jit
def flax_step(net, optimizer):
    optimizer.update(net, nnx.grad(lambda net: (net(jnp.asarray(X)) ** 3).mean())(net))


def flax_steps(net, optimizer, n):
    for _ in range(n):
        flax_step(net, optimizer)


def distance(one, other):
    return max((one[name] - other[name]).detach().abs().max().item() for name in other)


def torch_run(kind, wrap=torch.nn.DataParallel):
    torch.manual_seed(0)
    model = wrap(Theirs().double())
    return model, PAIRS[kind][0](model.parameters())


@pytest.mark.full
@pytest.mark.parametrize("kind", PAIRS)
def test_a_run_goes_there_and_back(kind, tmp_path):
    model, torch_optimizer = torch_run(kind)
    torch_steps(model, torch_optimizer, 2)
    file = {"model": model.state_dict(), "optimizer": torch_optimizer.state_dict(), "epoch": 2}
    torch.save(file, tmp_path / "theirs.pt")

    net = Ours()
    wrapped = jaxpar.DataParallel(net, device_ids=[0])
    optimizer = nnx.Optimizer(wrapped, PAIRS[kind][1](), wrt=nnx.Param)
    rest = parity.load_checkpoint(tmp_path / "theirs.pt", wrapped, optimizer, step=PAIRS[kind][2])
    assert (rest, int(optimizer.step[...])) == ({"epoch": 2}, 2)
    assert distance(parity.to_torch(net), model.module.state_dict()) == 0
    torch_steps(model, torch_optimizer, 2)
    assert distance(parity.to_torch(net), model.module.state_dict()) > 1e-4  # the comparison sees two steps
    flax_steps(wrapped, optimizer, 2)
    assert distance(parity.to_torch(net), model.module.state_dict()) < 1e-9

    parity.save_checkpoint(
        tmp_path / "ours.pt",
        wrapped,
        optimizer,
        like=tmp_path / "theirs.pt",
        module_prefix=True,
        extra={"epoch": 4},
    )
    back = torch.load(tmp_path / "ours.pt", weights_only=True)
    again, torch_again = torch_run(kind)
    again.load_state_dict(back["model"])
    torch_again.load_state_dict(back["optimizer"])
    torch_steps(model, torch_optimizer, 2)
    torch_steps(again, torch_again, 2)
    assert back["epoch"] == 4
    assert distance(again.state_dict(), model.state_dict()) < 1e-9


def test_the_prefix_is_put_on_where_it_is_asked_for(tmp_path):
    net = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    for given, prefix, want in ((net, False, "weight"), (net, True, "module.weight")):
        for wrap in (nnx.clone, jaxpar.DataParallel):
            parity.save_checkpoint(tmp_path / "net.pt", wrap(given), module_prefix=prefix)
            assert want in torch.load(tmp_path / "net.pt")["model"]


def saved(path, **file):
    torch.save(file, path)
    return path


def test_what_does_not_fit_changes_nothing(tmp_path):
    model, optimizer = torch_run("adamw", wrap=lambda model: model)
    torch_steps(model, optimizer, 1)
    state, net = optimizer.state_dict(), Ours()
    mine = nnx.Optimizer(net, optim.adamw(), wrt=nnx.Param)
    sgd = nnx.Optimizer(net, optim.sgd(momentum=0.9), wrt=nnx.Param)
    groups = {"params": [0, 1]}, {"params": [2, 3, 4, 5]}
    narrow = {name: x for name, x in model.state_dict().items() if name != "head.bias"}
    before = parity.to_torch(net)
    for file, into, kind, words in (
        ({"weights": {}}, mine, FileError, "no state_dict called 'model' in it; it has weights"),
        ({"model": model.state_dict()}, mine, FileError, "no state_dict called 'optimizer'"),
        ({"model": narrow, "optimizer": state}, mine, MatchError, "head.bias"),
        ({"model": model.state_dict(), "optimizer": state}, sgd, ValueError, "not found"),
        (
            {"model": model.state_dict(), "optimizer": state | {"param_groups": list(groups)}},
            mine,
            ValueError,
            "has 2 groups",
        ),
        (
            {"model": model.state_dict(), "optimizer": state | {"param_groups": list(groups[:1])}},
            mine,
            ValueError,
            "has 2 parameters and the model 6",
        ),
    ):
        with pytest.raises(kind, match=words):
            parity.load_checkpoint(saved(tmp_path / "file.pt", **file), net, into)
        assert distance(parity.to_torch(net), before) == 0
    with pytest.raises(ValueError, match="Pass like="):
        parity.save_checkpoint(tmp_path / "file.pt", net, mine)
    with pytest.raises(TypeError, match="no NNX module"):
        parity.load_checkpoint(tmp_path / "file.pt", jaxpar.DataParallel(jnp.tanh))


def test_groups_go_by_the_names_that_are_given(tmp_path):
    torch.manual_seed(0)
    model = Theirs().double()
    named = dict(model.named_parameters())
    order = sorted(named, key=lambda name: (name.endswith("bias"), name))
    groups = [
        {"params": [named[name] for name in order if name.endswith("bias") is bias]} for bias in (False, True)
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    torch_steps(model, optimizer, 2)
    path = saved(tmp_path / "file.pt", model=model.state_dict(), optimizer=optimizer.state_dict())
    net = Ours()
    mine = nnx.Optimizer(net, optim.adamw(lr=1e-2), wrt=nnx.Param)
    parity.load_checkpoint(path, net, mine, names=order)
    torch_steps(model, optimizer, 2)
    flax_steps(net, mine, 2)
    assert distance(parity.to_torch(net), model.state_dict()) < 1e-9
