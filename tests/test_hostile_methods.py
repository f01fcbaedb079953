"""Every public method refuses nonsense by name: of a valid call of an object one argument is replaced.

The law is the one of test_hostile_calls.py; objects are made by the valid calls of their classes.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_hostile_calls import HOSTILE, ODD_NUMBERS, verdict
from valid_calls import NAMESPACES, VALUES, folder, loss, net, optimizer, series, valid_call

import jaxpar
from jaxpar import distributions, nn, optim, parity

ROWS = series(8, 2)
LINEN = linen.Dense(1)
VARIABLES = LINEN.init(jax.random.key(0), ROWS)
WRAPPED = {
    "DataParallel": {"nnx": net, "linen": lambda: LINEN},
    "DistributedDataParallel": {"nnx": net, "linen": lambda: LINEN, "function": lambda: lambda p, x: x * p},
}
# Called by the library, whose own arguments they are, or written by the user.
OF_THE_LIBRARY = {
    "Placement.extended",
    "Placement.own_part",
    "Placement.for_value",
    "Replicas.values",
    "Shards.tree_unflatten",
    "DataParallel.around",
    "DistributedDataParallel.arrays",
    "DistributedDataParallel.holding",
    "Hardware.seconds",
    "BatchSampler.arrays",
    "TensorDataset.gather",
    "ParamGroup.remind",
    "Layout.of_outputs",
    "Layout.parse",
    "Level.parse",
    "FunctionState.replace",
    "Function.forward",
    "Function.backward",
    "CyclicLR.scale_fn",
    "Port.optimizer",
    "Port.scheduler",
    "Bucket.sum",
    "ConcatDataset.cumsum",
}


def methods() -> dict[str, tuple[Callable[[], Any], str]]:
    """Every method with an argument that a public class or its bases in jaxpar define, once."""
    kinds: dict[str, tuple[Callable[[], Any], type]] = {}
    for namespace in NAMESPACES:
        module = importlib.import_module(namespace)
        for name in module.__all__:
            kind = getattr(module, name)
            if isinstance(kind, type):
                wrapped = WRAPPED.get(name, {"": None})
                for of, inner in wrapped.items():
                    make = functools.partial(made, f"{namespace}.{name}", kind, inner)
                    kinds.setdefault(f"{namespace}.{name} {of}".strip(), (make, type(make()) if of else kind))
    rows: dict[str, tuple[Callable[[], Any], str]] = {}
    seen = set()
    for name, (make, kind) in kinds.items():
        for base in kind.__mro__:
            for method, value in vars(base).items() if base.__module__.startswith("jaxpar.") else ():
                function = getattr(value, "__func__", value)
                has_arguments = inspect.isfunction(function) and len(
                    inspect.signature(function).parameters
                ) > (not isinstance(value, staticmethod))
                if method[0] != "_" and has_arguments and function not in seen:
                    seen.add(function)
                    if f"{name.split()[0].rpartition('.')[2]}.{method}" not in OF_THE_LIBRARY:
                        rows[f"{name}.{method}"] = (make, method)
    return rows


def made(name: str, kind: Any, wrapped: Callable[[], Any] | None) -> Any:
    if wrapped is not None:
        return kind(wrapped())
    short = name.rpartition(".")[2]
    if short in OBJECTS:
        return OBJECTS[short]()
    args, kwargs = valid_call(name, kind)
    return kind(*args, **kwargs)


def saved() -> Any:
    checkpointer = jaxpar.Checkpointer(folder())
    checkpointer.save(1, net=net())
    checkpointer.save_best(1, 0.5, net=net())
    return checkpointer


def logged() -> Any:
    log = jaxpar.MetricsLog(folder())
    log.log(1, loss=0.5)
    log.flush()
    return log


def step() -> Any:
    return jaxpar.train_step(net(), optimizer(), loss)


class Doubled(nn.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, cotangent):
        return 2 * cotangent


@functools.cache
def comparison() -> Any:
    import torch

    torch_net = torch.nn.Linear(2, 1)
    flax_net = net()
    parity.load_torch(flax_net, torch_net)
    return parity.compare(torch_net, flax_net, np.ones((4, 2), np.float32))


@functools.cache
def bisection() -> Any:
    args, kwargs = valid_call("jaxpar.parity.bisect", parity.bisect)
    return parity.bisect(*args, **kwargs)


@functools.cache
def estimate() -> Any:
    args, kwargs = valid_call("jaxpar.estimate", jaxpar.estimate)
    return jaxpar.estimate(*args, **kwargs)


OBJECTS: dict[str, Callable[[], Any]] = {
    "Checkpointer": saved,
    "MetricsLog": logged,
    "TrainStep": step,
    "Function": lambda: Doubled,
    "Profile": lambda: jaxpar.profile(net()),
    "Comparison": comparison,
    "Bisection": bisection,
    "Estimate": estimate,
    "MemoryReport": lambda: jaxpar.memory_report(net(), ROWS),
    "FunctionState": lambda: jaxpar.FunctionState.create({"w": jnp.ones(2)}, optax.sgd(0.1)),
    "DataParallel": lambda: jaxpar.DataParallel(net()),
    "Precision": lambda: jaxpar.Precision(jnp.bfloat16),
    "Normal": lambda: distributions.Normal(0.0, 1.0),
    "Independent": lambda: distributions.Independent(distributions.Normal(jnp.zeros((2, 3)), 1.0), 1),
}

# Arguments of methods without a default, by name or by class and name, and what is between parentheses.
ARGUMENTS: dict[str, Callable[[], Any]] = {
    "n": lambda: 2,
    "step": lambda: 2,
    "metric": lambda: 0.5,
    "metrics": lambda: 0.5,
    "MemoryReport.path": lambda: f"{folder()}/chart.png",
    "Estimate.path": lambda: f"{folder()}/chart.png",
    "MetricsLog.path": lambda: f"{folder()}/chart.png",
    "Bernoulli.log_prob.value": lambda: jnp.ones(()),
    "Categorical.log_prob.value": lambda: jnp.ones((), int),
    "Normal.value": lambda: jnp.full((), 0.5),
    **{f"{name}.key": lambda: jax.random.key(0) for name in ("Bernoulli.sample", "Normal.rsample")},
    **dict.fromkeys(
        ("BatchNorm.x", "InstanceNorm.x", "SyncBatchNorm.x", "Conv.x", "ConvTranspose.x"),
        lambda: series(2, 6, 4),
    ),
    "Generator.randint.low": lambda: 5,
    "Generator.randint.high": lambda: (2,),
    "path": lambda: f"{folder()}/file.html",
    "directory": lambda: logged().directory,
    "**items": lambda: {"net": net()},
    "**values": lambda: {"loss": 0.5},
    "*batch": lambda: [ROWS],
    "*inputs": lambda: [ROWS],
    "*args": lambda: [ROWS],
    "DataParallel.apply.*args": lambda: [ROWS],
    "*arguments": lambda: [ROWS],
    "*size": lambda: [2],
    "Hardware.**changes": lambda: {"memory": 1e9},
    "FunctionState.**values": dict,
    "params": lambda: {"w": jnp.ones(2)},
    "grads": lambda: {"w": jnp.ones(2)},
    "tree": lambda: {"w": jnp.ones(2)},
    "card": lambda: "h100",
    "kind": lambda: "float32",
    "epoch": lambda: 1,
    "value": lambda: 1.0,
    "batch_shape": lambda: (2,),
    "modules": lambda: {"first": net()},
    "ModuleList.modules": lambda: [net()],
    "name": lambda: "second",
    "module": net,
    "model": net,
    "text": lambda: json.dumps(comparison().as_dict()),
    "low": lambda: 0,
    "seed": lambda: 0,
    "p": lambda: 0.5,
    "Generator.x": lambda: np.zeros(3, np.float32),
    "variables": lambda: VARIABLES,
    "parameters": lambda: jnp.ones(()),
    "hook": lambda: jaxpar.comm_hooks.mean,
    "loss_fn": lambda: loss,
    "rngs": lambda: jax.random.key(0),
    "tx": lambda: optax.sgd(0.1),
}


def valid_method(name: str, method: str, thing: Any) -> inspect.BoundArguments:
    """The arguments of a call that returns, as far as they have no default."""
    kind = name.split()[0].split(".")[-1 if " " in name else -2]
    values: dict[str, Any] = {}
    signature = inspect.signature(getattr(thing, method))
    for p in signature.parameters.values():
        star = {2: "*", 4: "**"}.get(p.kind, "")
        keys = [f"{kind}.{method}.{star}{p.name}", f"{kind}.{star}{p.name}", f"{star}{p.name}"]
        make = next((ARGUMENTS[key] for key in keys if key in ARGUMENTS), VALUES.get(p.name))
        if p.name == "carry":
            make = thing.pure()[1]
        if p.name in ("state", "state_dict"):
            make = thing.get_state if method == "set_state" else thing.state_dict
        is_required = p.default is p.empty and (not star or make is not None)
        if is_required or keys[0] in ARGUMENTS:
            values[p.name] = make() if callable(make) else make
    return inspect.BoundArguments(signature, values)


METHODS = methods()

CASES = [
    (name, argument)
    for name, (make, method) in METHODS.items()
    for argument in list(inspect.signature(getattr(make(), method)).parameters.values())
]


# Only the user's loss and model can say what a batch holds; their errors are unchanged.
OF_THE_USER = re.compile(r"TrainStep\.(lower|compile)\.batch$")
# What some of ODD_NUMBERS mean: a bound; a metric that is not better.
MEANT = {
    **dict.fromkeys(("uniform_.low", "normal_.mean", "random_.high"), ("a negative number",)),
    "step.metrics": ODD_NUMBERS,
}
ASKED = [(name, p) for name, p in CASES if not OF_THE_USER.search(f"{name}.{p.name}")]


def outcome(name: str, argument: inspect.Parameter, hostile: str) -> str:
    make, method = METHODS[name]
    thing = make()
    call = valid_method(name, method, thing)

    def replaced(**value: Any) -> Any:
        if argument.kind in (2, 4):
            value = {argument.name: next(iter(value.values()))}
            whole = call.arguments.get(argument.name, () if argument.kind == 2 else {"more": None})
            x = value[argument.name]
            value = {argument.name: (x, *whole[1:]) if argument.kind == 2 else dict.fromkeys(whole, x)}
        merged = {**call.arguments, **value}
        order = [n for n in call.signature.parameters if n in merged]
        bound = inspect.BoundArguments(call.signature, {n: merged[n] for n in order})
        return getattr(thing, method)(*bound.args, **bound.kwargs)

    if hostile in MEANT.get(f"{method}.{argument.name}", ()):
        return ""
    return verdict(method, replaced, [], {}, argument, hostile)


# Arguments that Linen, NumPy and Flax read, each with every hostile value.
OTHERS = re.compile(r"linen\.|wrt$|Generator\.(\w+\.dtype|rand\.size|bernoulli_?\.p$)|save_best\.metric|icdf")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", [c for c in ASKED if OTHERS.search(f"{c[0]}.{c[1].name}")], ids=str)
def test_values_that_other_libraries_read_are_refused_by_name(case):
    name, argument = case
    assert {h: wrong for h in HOSTILE if (wrong := outcome(name, argument, h))} == {}


@pytest.mark.full
@given(st.sampled_from(ASKED), st.sampled_from(sorted(HOSTILE)))
@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_a_hostile_value_is_refused_by_name(case, hostile):
    name, argument = case
    wrong = outcome(name, argument, hostile)
    assert not wrong, f"{name}({argument.name}={hostile}) {wrong}"


REFUSED = {
    "a step before the first": (
        lambda: logged().resume_from(-1),
        ValueError,
        "MetricsLog.resume_from: step is -1",
    ),
    "a text for yes": (
        lambda: saved().restore(1, strict_dtype="no", net=net()),
        TypeError,
        "Checkpointer.restore: strict_dtype is 'no'",
    ),
    "a static method": (
        lambda: jaxpar.MetricsLog.read("\0"),
        ValueError,
        "MetricsLog.read: directory is",
    ),
    "a class method": (
        lambda: parity.Comparison.from_json(3),
        TypeError,
        "Comparison.from_json: text is 3",
    ),
    "a wrapper": (
        lambda: jaxpar.DistributedDataParallel(net()).join(enable=2.5),
        TypeError,
        "DistributedDataParallel.join: enable is 2.5",
    ),
    "a text for a shape": (
        lambda: jaxpar.random.Generator(0).rand(b"x"),
        TypeError,
        "Generator.rand: size is b'x'",
    ),
    "a number for a type": (
        lambda: jaxpar.random.Generator(0).randint(3, (2,), dtype=2.5),
        TypeError,
        "Generator.randint: dtype is 2.5",
    ),
    "a number for a filter": (
        lambda: jaxpar.DistributedDataParallel(net()).value_and_grad(loss, wrt=2.5),
        TypeError,
        "DistributedDataParallel.value_and_grad: wrt is 2.5; it must be a filter of NNX",
    ),
    "a huge metric": (
        lambda: saved().save_best(2, 10**400, net=net()),
        ValueError,
        "Checkpointer.save_best was called with step=2, metric=1000",
    ),
    "a negative count of words": (
        lambda: jaxpar.random.Generator(0).words(-1),
        ValueError,
        "Generator.words: n is -1; it must be 0 or more",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_method_names_itself(case):
    call, kind, text = REFUSED[case]
    with pytest.raises(kind, match=re.escape(text)):
        call()


@pytest.mark.parametrize("wrap", [jaxpar.DataParallel, jaxpar.DistributedDataParallel, lambda net: net])
def test_an_error_in_a_call_of_a_step_names_its_batch(wrap):
    wrapped = wrap(net())
    step = jaxpar.train_step(wrapped, nnx.Optimizer(wrapped, optax.sgd(0.1), wrt=nnx.Param), loss)
    evaluate = jaxpar.eval_step(wrapped)
    for name, call in {"train_step": step, "eval_step": evaluate}.items():
        with pytest.raises(TypeError) as caught:
            call(jnp.ones((8, 3), np.float32))
        assert f"{name} was called with (float32[8, 3])." in caught.value.__notes__
    if wrapped.__class__ is not nnx.Linear:
        with pytest.raises(TypeError) as caught:
            wrapped(jnp.ones((8, 3), np.float32))
        assert f"{type(wrapped).__name__} was called with (float32[8, 3])." in caught.value.__notes__


def test_an_error_of_the_library_is_not_named_twice():
    with pytest.raises(jaxpar.errors.LossError) as caught:
        jaxpar.train_step(net(), optimizer(), lambda net, x: net(x))(ROWS)
    assert not any("was called with" in note for note in getattr(caught.value, "__notes__", ()))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_error_of_the_users_code_in_a_method_is_unchanged():
    def fail(epoch):
        if epoch:
            raise KeyError("the user's")
        return 1.0

    scheduler = optim.lr_scheduler.LambdaLR(optimizer(), fail)
    with pytest.raises(KeyError, match="the user's"):
        scheduler.step(1)
