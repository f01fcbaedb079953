"""Optimizer state from torch and back: a run changes sides twice and nobody can tell."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from comparing import assert_equal_numbers
from flax import nnx

from jaxpar import optim
from jaxpar.optim import lr_scheduler

torch = pytest.importorskip("torch")

TOLERANCE = 1e-12
LEG = 5
"""Steps in torch, then here, then in torch again."""

CASES = [
    ("SGD", "sgd", {"lr": 0.1}),
    ("SGD", "sgd", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    ("SGD", "sgd", {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1}),
    ("Adam", "adam", {"lr": 0.1, "amsgrad": True}),
    ("AdamW", "adamw", {"lr": 0.1}),
    ("RMSprop", "rmsprop", {"centered": True, "momentum": 0.9}),
    ("RMSprop", "rmsprop", {"weight_decay": 0.1}),
    ("Adagrad", "adagrad", {"lr_decay": 0.1}),
    ("Adadelta", "adadelta", {}),
    ("Adamax", "adamax", {"lr": 0.1}),
    ("NAdam", "nadam", {"lr": 0.1}),
    ("RAdam", "radam", {"lr": 0.1}),
    ("Rprop", "rprop", {}),
    ("ASGD", "asgd", {"lr": 0.1, "t0": 3}),
    ("Adafactor", "adafactor", {"weight_decay": 0.1}),
]
ONLY_OURS = {"adafactor": {"dims": lambda path, leaf: (-1, -2)}}
"""Torch's rows are the columns of a transposed kernel."""


TRANSPOSED = {
    "dense/kernel": optim.TorchParam("dense.weight", np.transpose, np.transpose),
    "dense/bias": "dense.bias",
    "scale": "norm.weight",
}
NAMES = ["dense.weight", "dense.bias", "norm.weight"]
SHAPES = {"dense.weight": (4, 3), "dense.bias": (4,), "norm.weight": ()}


@pytest.fixture(autouse=True)
def float64_scalars():
    """Torch keeps mu_product and eta in the default type."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def here(arrays):
    """Torch's parameters as a Flax tree."""
    arrays = {name: jnp.asarray(np.array(a)) for name, a in arrays.items()}
    return {
        "dense": {"kernel": arrays["dense.weight"].T, "bias": arrays["dense.bias"]},
        "scale": arrays["norm.weight"],
    }


def there(params):
    flat = {"dense.weight": params["dense"]["kernel"].T, "dense.bias": params["dense"]["bias"]}
    return {name: np.array(a) for name, a in {**flat, "norm.weight": params["scale"]}.items()}


def gradient(t, name, p):
    return np.random.RandomState(100 * t + NAMES.index(name)).randn(*SHAPES[name]) + 0.3 * np.asarray(p)


def torch_leg(optimizer, tensors, steps):
    for t in steps:
        for name, p in tensors.items():
            p.grad = torch.as_tensor(gradient(t, name, p.detach().numpy()))
        optimizer.step()


def new_torch(kind, options, arrays):
    tensors = {name: torch.tensor(np.array(a), requires_grad=True) for name, a in arrays.items()}
    return getattr(torch.optim, kind)(tensors.values(), **options), tensors


def begin(kind, options, steps=LEG):
    random = np.random.RandomState(0)
    optimizer, tensors = new_torch(kind, options, {n: random.randn(*SHAPES[n]) for n in NAMES})
    torch_leg(optimizer, tensors, range(steps))
    return optimizer, tensors


def arrays_of(tensors):
    return {name: p.detach().numpy().copy() for name, p in tensors.items()}


def jax_leg(tx, params, state, steps):
    @jax.jit
    def step(grads, state, params):
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    for t in steps:
        grads = here({name: gradient(t, name, a) for name, a in there(params).items()})
        params, state = step(grads, state, params)
    return params, state


@pytest.mark.parametrize(("kind", "word", "options"), CASES, ids=str)
def test_there_and_back(kind, word, options):
    optimizer, tensors = begin(kind, options)
    tx = getattr(optim, word)(**options, **ONLY_OURS.get(word, {}))
    params = here(arrays_of(tensors))
    given = {"names": NAMES, "layout": TRANSPOSED}
    step = LEG if kind == "SGD" else None
    state = optim.state_from_torch(tx, params, optimizer.state_dict(), step=step, **given)
    params, state = jax_leg(tx, params, state, range(LEG, 2 * LEG))

    torch_leg(optimizer, tensors, range(LEG, 2 * LEG))
    for name, a in there(params).items():
        assert_equal_numbers(name, a, tensors[name].detach().numpy(), TOLERANCE)

    again, copies = new_torch(kind, options, there(params))
    state_dict = optim.state_to_torch(state, again.state_dict(), tensor=torch.from_numpy, **given)
    again.load_state_dict(state_dict)
    assert_same_state(again.state_dict(), optimizer.state_dict())
    torch_leg(optimizer, tensors, range(2 * LEG, 3 * LEG))
    torch_leg(again, copies, range(2 * LEG, 3 * LEG))
    for name in NAMES:
        assert_equal_numbers(name, copies[name].detach().numpy(), tensors[name].detach().numpy(), TOLERANCE)


def assert_same_state(got, want):
    assert got["param_groups"] == want["param_groups"]
    assert got["state"].keys() == want["state"].keys()
    for i, entry in want["state"].items():
        assert got["state"][i].keys() == entry.keys()
        for key, value in entry.items():
            mine = got["state"][i][key].double().numpy()
            assert_equal_numbers(f"{key} of {i}", mine, value.double().numpy(), TOLERANCE)


@pytest.mark.parametrize("fault", ["step", "exp_avg", "exp_avg_sq", "lost"])
def test_a_planted_fault_in_a_state_is_found(fault):
    optimizer, tensors = begin("Adam", {})
    want = optimizer.state_dict()
    tx, params = optim.adam(), here(arrays_of(tensors))
    given = {"names": NAMES, "layout": TRANSPOSED}
    got = optim.state_to_torch(
        optim.state_from_torch(tx, params, want, **given), want, tensor=torch.from_numpy, **given
    )
    assert_same_state(got, want)
    if fault == "lost":
        del got["state"][1]
    else:
        got["state"][1][fault] = got["state"][1][fault].double() * (1 + 1e-9)
    with pytest.raises(AssertionError):
        assert_same_state(got, want)


@pytest.mark.parametrize(("kind", "word", "options"), CASES, ids=str)
def test_before_the_first_step_there_is_nothing(kind, word, options):
    optimizer, tensors = begin(kind, options, 0)
    tx, params = getattr(optim, word)(**options), here(arrays_of(tensors))
    state = optim.state_from_torch(tx, params, optimizer.state_dict(), names=NAMES, layout=TRANSPOSED)
    for got, want in zip(jax.tree.leaves(state), jax.tree.leaves(tx.init(params)), strict=True):
        np.testing.assert_array_equal(got, want)


def test_schedules_and_wrapped_optimizers_go_on():
    optimizer, tensors = begin("SGD", {"lr": 0.1, "momentum": 0.9})
    params = here(arrays_of(tensors))
    schedule = lr_scheduler.exponential_lr(0.1, 0.5)
    given = {"names": NAMES, "layout": TRANSPOSED, "step": LEG}
    plain = optax.chain(optim.clip_grad_norm(1.0), optim.sgd(schedule, momentum=0.9))
    injected = optax.inject_hyperparams(optim.sgd, static_args=("dampening", "momentum", "weight_decay"))(
        lr=schedule, momentum=0.9
    )
    grouped = optim.param_groups(
        optim.sgd, [{"params": "scale", "momentum": 0.5}, {"params": ...}], lr=schedule, momentum=0.9
    )
    for tx in (plain, injected, grouped):
        state = optim.state_from_torch(tx, params, optimizer.state_dict(), **given)
        buffers = [leaf for leaf in jax.tree.leaves(state) if leaf.shape == (3, 4)]
        (want,) = (s["momentum_buffer"] for i, s in optimizer.state_dict()["state"].items() if i == 0)
        np.testing.assert_array_equal(buffers[0], want.numpy().T)
        before = optax.apply_updates(params, tx.update(params, state, params)[0])
        fresh = optax.apply_updates(params, tx.update(params, tx.init(params), params)[0])
        assert not np.allclose(before["scale"], fresh["scale"])
        assert {int(x) for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.integer)} == {LEG}


@pytest.mark.parametrize(("kind", "word", "options"), CASES, ids=str)
def test_a_fresh_state_is_empty_in_torch(kind, word, options):
    optimizer, tensors = begin(kind, options, 0)
    state = getattr(optim, word)(**options).init(here(arrays_of(tensors)))
    back = optim.state_to_torch(state, optimizer.state_dict(), TRANSPOSED, names=NAMES)
    assert back["state"] == {}
    optimizer.load_state_dict(back)
    torch_leg(optimizer, tensors, range(1))


def test_groups_of_sgd_with_and_without_momentum():
    p, q = (torch.ones(2, requires_grad=True) for _ in range(2))
    optimizer = torch.optim.SGD([{"params": [p], "momentum": 0.9}, {"params": [q]}], lr=0.1)
    for x in (p, q):
        x.grad = torch.ones(2)
    optimizer.step()
    tx = optim.param_groups(optim.sgd, [{"params": "0", "momentum": 0.9}, {"params": "1"}], lr=0.1)
    state = optim.state_from_torch(tx, [jnp.ones(2), jnp.ones(2)], optimizer.state_dict(), step=1)
    back = optim.state_to_torch(state, optimizer.state_dict(), tensor=torch.from_numpy)
    assert_same_state(back, optimizer.state_dict())


def test_bfloat16_goes_through_float32():
    p = torch.ones(4, dtype=torch.bfloat16, requires_grad=True)
    optimizer = torch.optim.Adam([p])
    p.grad = torch.full((4,), 0.1, dtype=torch.bfloat16)
    optimizer.step()
    state = optim.state_from_torch(optim.adam(), [jnp.ones(4, jnp.bfloat16)], optimizer.state_dict())
    assert optax.tree.get(state, "exp_avg")[0].dtype == jnp.bfloat16
    back = optim.state_to_torch(state, optimizer.state_dict(), tensor=torch.from_numpy)
    assert_same_state(back, optimizer.state_dict())
    optimizer.load_state_dict(back)
    assert optimizer.state[p]["exp_avg"].dtype == torch.bfloat16


def test_names_in_the_state_dict_and_default_layout():
    tensors = [("0", torch.ones(3, requires_grad=True)), ("1", torch.ones(2, requires_grad=True))]
    optimizer = torch.optim.Adam([("a.w", tensors[0][1]), ("a.b", tensors[1][1])])
    for _, p in tensors:
        p.grad = torch.ones_like(p)
    optimizer.step()
    params = {"a": {"w": jnp.ones(3), "b": jnp.ones(2)}}
    state = optim.state_from_torch(optim.adam(), params, optimizer.state_dict())
    np.testing.assert_allclose(optax.tree.get(state, "exp_avg")["a"]["w"], 0.1)
    unnamed = torch.optim.Adam([p for _, p in tensors])
    unnamed.step()
    assert optim.state_from_torch(optim.adam(), [jnp.ones(3), jnp.ones(2)], unnamed.state_dict())


def test_one_torch_parameter_cut_into_leaves():
    """As q, k and v of an attention in_proj_weight."""
    whole = torch.randn(6, 2, requires_grad=True)
    optimizer = torch.optim.Adam([whole])
    whole.grad = torch.randn(6, 2)
    optimizer.step()

    def part(i):
        rows = slice(2 * i, 2 * i + 2)

        def to_torch(x):
            full = np.zeros((6, 2))
            full[rows] = np.asarray(x).T
            return full

        return optim.TorchParam("0", lambda x: x[rows].T, to_torch)

    layout = {"q": part(0), "k": part(1), "v": part(2)}
    params = {name: jnp.zeros((2, 2)) for name in layout}
    state = optim.state_from_torch(optim.adam(), params, optimizer.state_dict(), layout)
    back = optim.state_to_torch(state, optimizer.state_dict(), layout, tensor=torch.from_numpy)
    assert_same_state(back, optimizer.state_dict())


def test_an_nnx_optimizer_goes_on():
    module = torch.nn.Linear(3, 2)
    theirs = torch.optim.Adam(module.parameters(), lr=0.1)
    model = nnx.Linear(3, 2, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optim.adam(lr=0.1), wrt=nnx.Param)
    layout = {"kernel": optim.TorchParam("weight", np.transpose, np.transpose), "bias": "bias"}
    names = [name for name, _ in module.named_parameters()]
    x = np.random.RandomState(0).randn(5, 3)

    def train():
        theirs.zero_grad()
        (module(torch.tensor(x)) ** 2).mean().backward()
        theirs.step()

    train()
    train()
    model.kernel.set_value(jnp.asarray(module.weight.detach().numpy().T))
    model.bias.set_value(jnp.asarray(np.array(module.bias.detach().numpy())))
    params = nnx.as_pure(nnx.state(model, nnx.Param))
    state = optim.state_from_torch(optimizer.tx, params, theirs.state_dict(), layout, names=names)
    nnx.update(optimizer.opt_state, nnx.state(state))
    train()
    gradients = nnx.grad(lambda model: (model(x) ** 2).mean())(model)
    optimizer.update(model, gradients)
    assert_equal_numbers("kernel", model.kernel[...], module.weight.detach().numpy().T, TOLERANCE)
    back = optim.state_to_torch(
        nnx.as_pure(optimizer.opt_state), theirs.state_dict(), layout, names=names, tensor=torch.from_numpy
    )
    assert_same_state(back, theirs.state_dict())


# --------------------------------------------------------------------------------------- bad input


def mismatches():
    optimizer, tensors = begin("Adam", {})
    state_dict, params = optimizer.state_dict(), here(arrays_of(tensors))
    load = optim.state_from_torch
    apart = {**state_dict, "state": {**state_dict["state"]}}
    apart["state"][1] = {**apart["state"][1], "step": torch.tensor(9.0)}
    sgd, _ = begin("SGD", {"momentum": 0.9})
    given = {"names": NAMES, "layout": TRANSPOSED}
    untransposed = {**TRANSPOSED, "dense/kernel": "dense.weight"}
    state = load(optim.adam(), params, state_dict, **given)
    one_way = {**TRANSPOSED, "dense/kernel": optim.TorchParam("dense.weight", np.transpose)}
    return {
        "no names": (
            lambda: load(optim.adam(), params, state_dict),
            r"dense/kernel needs exp_avg of dense.kernel",
        ),
        "too few names": (
            lambda: load(optim.adam(), params, state_dict, names=NAMES[:2]),
            "not one for each",
        ),
        "not in the layout": (
            lambda: load(optim.adam(), params, state_dict, {"scale": "norm.weight"}, names=NAMES),
            r"the layout has no entry for dense/bias; it has \['scale'\]",
        ),
        "not transposed": (
            lambda: load(optim.adam(), params, state_dict, untransposed, names=NAMES),
            r"dense/kernel has shape \(3, 4\) and exp_avg of dense.weight \(4, 3\)",
        ),
        "another option": (
            lambda: load(optim.adam(amsgrad=True), params, state_dict, **given),
            "needs max_exp_avg_sq of dense.weight",
        ),
        "another optimizer": (
            lambda: load(optim.rmsprop(), params, state_dict, **given),
            "not used: .*exp_avg of dense.weight",
        ),
        "different steps": (
            lambda: load(optim.adam(), params, apart, **given),
            "not at the same step: .*'dense.bias': 9",
        ),
        "another step": (
            lambda: load(optim.adam(), params, state_dict, step=3, **given),
            "step=3, .* says 5",
        ),
        "no step": (lambda: load(optim.sgd(momentum=0.9), params, sgd.state_dict(), **given), "pass step="),
        "back without a counterpart": (
            lambda: optim.state_to_torch(state, state_dict, names=NAMES),
            r"leaves .*dense/kernel \(torch name dense.kernel\)",
        ),
        "back without a way": (
            lambda: optim.state_to_torch(state, state_dict, one_way, names=NAMES),
            "the layout of dense/kernel has a to_flax and no to_torch",
        ),
        "back with one too many": (
            lambda: optim.state_to_torch(
                state, {"param_groups": [{"params": [0, 1, 2, 3]}]}, TRANSPOSED, names=[*NAMES, "extra"]
            ),
            r"torch parameters \['extra'\]",
        ),
    }


MISMATCHES = (
    "no names",
    "too few names",
    "not in the layout",
    "not transposed",
    "another option",
    "another optimizer",
    "different steps",
    "another step",
    "no step",
    "back without a counterpart",
    "back without a way",
    "back with one too many",
)


@pytest.mark.parametrize("case", MISMATCHES)
def test_nothing_is_guessed(case):
    call, message = mismatches()[case]
    with pytest.raises(ValueError, match=message):
        call()


def test_the_average_of_asgd_is_torchs():
    """It has no part in the parameters' way, so only the state shows it."""
    options = {"lr": 0.1, "lambd": 0.01, "alpha": 0.5, "t0": 3}
    p = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
    theirs = torch.optim.ASGD([p], **options)
    tx, q = optim.asgd(**options), jnp.asarray([1.0, -2.0])
    state = tx.init(q)
    for _ in range(8):
        p.grad = p.detach() + 1
        theirs.step()
        updates, state = tx.update(q + 1, state, q)
        q = q + updates
    want = theirs.state[p]["ax"].numpy()
    assert not np.allclose(want, p.detach().numpy())
    np.testing.assert_allclose(optax.tree.get(state, "ax"), want, rtol=1e-12)
