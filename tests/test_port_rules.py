"""Every rule of `jaxpar port` against torch: values and gradients of the calls of porting/rule_cases.py.

All calls are methods of one module, which is ported once. Each has inputs of its own, so that the gradient of
one sum is that of every call by itself. A rule that no call uses fails, and so does a call without a rule.
"""

from __future__ import annotations

import ast
import importlib
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from porting import rule_cases

from jaxpar import parity
from jaxpar.parity._port import proof, rules
from jaxpar.parity._port.rules.rule import CallRule

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
GROUPS = ("METHODS", "PAIRS", "FUNCTIONS", "NN_FUNCTIONS")
INPUTS = ("x", "y", "p", "v", "m", "b", "c", "s", "im", "vol", "n", "i", "t", "k")
FLOATS = INPUTS[:10]
KINDS = ("normal", "ties", "zeros")
UNDEFINED = ("topk", "kthvalue", "median(1", "hinge", "hypot")
"""torch does not define which of equal values they take; the hinge is 2.14's, and hypot's gradient NaN."""
CHUNK = 70
"""Calls in one program: XLA's time to compile grows faster than their number."""


def calls(group):
    yield from map(ast.unparse, ast.parse(f"({getattr(rule_cases, group)})", mode="eval").body.elts)


def inputs(kind):
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape):
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        return {"normal": x, "ties": (1.5 * x).round().clamp(-1, 1), "zeros": 0 * x}[kind]

    x, y, uniform = numbers(3, 4), numbers(3, 4), torch.rand(3, 4, generator=generator, dtype=torch.float64)
    p = 0.8 * uniform + 0.1 if kind == "normal" else torch.full_like(x, 0.5)
    shapes = ((4,), (4, 4), (2, 3, 4), (2, 4, 3), (2, 4, 6), (2, 4, 6, 6), (1, 2, 4, 4, 4))
    n = torch.randint(-5, 6, (3, 4), generator=generator)
    i, t = torch.tensor([[0, 2], [3, 1], [1, 0]]), torch.tensor([1, 3, 0])
    values = (x, y, p, *(numbers(*shape) for shape in shapes), n, i, t, uniform > 0.5)
    return dict(zip(INPUTS, values, strict=True))


def source(expressions):
    arguments = ", ".join(INPUTS)
    methods = [f"def call_{j}(self, {arguments}):\n        return {x}" for j, x in enumerate(expressions)]
    lines = "".join(f"        self.call_{j}({arguments})\n" for j in range(len(expressions)))
    forward = f"def forward(self, {arguments}):\n{lines}        return x\n"
    imports = "import numpy\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n\n"
    return imports + "class Calls(nn.Module):\n    " + "\n\n    ".join([*methods, forward])


@pytest.fixture(scope="module")
def ported(tmp_path_factory):
    """torch's calls, the ported ones, the holes by a call's number, and the rules that were used."""
    patch, used = pytest.MonkeyPatch(), set()
    apply = CallRule.apply

    def noting(rule, *arguments):
        written = apply(rule, *arguments)
        if written is not None:
            used.add((rule.template, rule.signature[rule.signature[:1] == ("self",) :]))
        return written

    patch.setattr(CallRule, "apply", noting)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    module = importlib.import_module("jaxpar.parity._port.port")
    patch.setattr(module, "_proven", lambda *_: module.Proof())
    expressions = [call for group in GROUPS for call in calls(group)]
    folder = tmp_path_factory.mktemp("rules")
    (folder / "rule_calls.py").write_text(source(expressions))
    patch.syspath_prepend(folder)
    calls_of = importlib.import_module("rule_calls").Calls
    try:
        port = parity.port(calls_of, *inputs("normal").values(), out=folder / "port.py")
        file = vars(proof.imported(folder / "port.py"))
        net = eval(port.build, {**file, "rngs": nnx.Rngs(0)})
        yield SimpleNamespace(torch=calls_of(), flax=net, holes=port.holes, used=used, calls=expressions)
    finally:
        torch.set_default_dtype(before)
        patch.undo()


def flat(output):
    return [x for part in output for x in flat(part)] if isinstance(output, tuple | list) else [output]


def of_torch(module, number, given):
    """Return the outputs, the factors of their sum, and the gradients of that sum."""
    arguments = {name: x.requires_grad_() if name in FLOATS else x for name, x in given.items()}
    outputs = flat(getattr(module, f"call_{number}")(*arguments.values()))
    random = np.random.RandomState(0)
    factors = [
        random.randn(*x.shape)
        if isinstance(x, torch.Tensor) and x.requires_grad and x.dtype is torch.float64
        else None
        for x in outputs
    ]
    terms = [(x * torch.as_tensor(f)).sum() for x, f in zip(outputs, factors, strict=True) if f is not None]
    leaves = [arguments[name] for name in FLOATS]
    try:
        gradients = (
            torch.autograd.grad(sum(terms), leaves, allow_unused=True) if terms else [None] * len(FLOATS)
        )
    except RuntimeError:  # torch has no derivative
        return outputs, [None] * len(outputs), None
    return outputs, factors, gradients


def program(net, numbers):
    def total(floats, others, factors):
        terms, outputs = jnp.zeros(()), []
        for row, number in enumerate(numbers):
            given = {**{name: x[row] for name, x in floats.items()}, **others}
            outputs.append(
                [jnp.asarray(x) for x in flat(getattr(net, f"call_{number}")(*(given[n] for n in INPUTS)))]
            )
            terms += sum(
                (x * f).sum() for x, f in zip(outputs[-1], factors[row], strict=False) if f is not None
            )
        return terms, outputs

    return jax.value_and_grad(total, has_aux=True)


def difference(ours, torchs):
    x = np.asarray(ours)
    y = (
        torchs.detach().resolve_conj().resolve_neg().numpy()
        if isinstance(torchs, torch.Tensor)
        else np.asarray(torchs)
    )
    if x.shape != y.shape or {x.dtype.kind, y.dtype.kind} not in ({x.dtype.kind}, {"i", "u"}):
        return f"{x.dtype}{x.shape} and {y.dtype}{y.shape}"
    widest = complex if y.dtype.kind == "c" else float
    same = np.allclose(x.astype(widest), y.astype(widest), rtol=1e-10, atol=1e-11, equal_nan=True)
    return "" if same else f"{x.ravel()[:4]} and {y.ravel()[:4]}"


FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def check(net, reference, numbers, names):
    """Return the calls that differ, with the numbers."""
    wrong, compiled = {}, None
    for kind in KINDS:
        given = inputs(kind)
        expected = [of_torch(reference, number, inputs(kind)) for number in numbers]
        floats = {name: jnp.stack([jnp.asarray(given[name].numpy())] * len(numbers)) for name in FLOATS}
        others = {name: jnp.asarray(given[name].numpy()) for name in INPUTS if name not in FLOATS}
        arguments = floats, others, [factors for _, factors, _ in expected]
        compiled = compiled or jax.jit(program(net, numbers)).lower(*arguments).compile(FAST)
        (_, outputs), gradients = compiled(*arguments)
        for row, (number, (torchs, _, derived)) in enumerate(zip(numbers, expected, strict=True)):
            if kind != "normal" and any(word in names[number] for word in UNDEFINED):
                continue
            found = [] if len(outputs[row]) == len(torchs) else [f"{len(outputs[row])} outputs"]
            found += filter(None, map(difference, outputs[row], torchs))
            for name, x in zip(FLOATS, derived or (), strict=False):
                x = torch.zeros_like(given[name]) if x is None else x
                if text := difference(gradients[name][row], x):
                    found.append(f"the gradient of {name}: {text}")
            if found:
                wrong.setdefault(names[number], f"{kind}: {found[0]}")
    return wrong


@pytest.mark.sampled(2)
@pytest.mark.parametrize("chunk", range(12))
def test_values_and_gradients_are_torchs(ported, chunk):
    assert len(ported.calls) <= CHUNK * 12
    numbers = list(range(len(ported.calls)))[chunk * CHUNK : (chunk + 1) * CHUNK]
    if numbers:
        assert check(ported.flax, ported.torch, numbers, ported.calls) == {}


def test_every_call_has_a_rule(ported):
    assert ported.holes == ()


def test_every_rule_is_used(ported):
    tables = {**rules.FUNCTIONS, **{f"x.{name}": row for name, row in (rules.METHODS | rules.PAIRS).items()}}
    unused = {
        f"{name}({', '.join(rule.signature)})"
        for name, candidates in tables.items()
        for rule in candidates
        if (rule.template, rule.signature[rule.signature[:1] == ("self",) :]) not in ported.used
    }
    assert unused == rule_cases.ELSEWHERE


def test_a_wrong_gradient_is_found(ported):
    """Planted: `jnp.abs`, whose derivative at 0 is 1."""
    number = ported.calls.index("x.abs()")
    net = SimpleNamespace(**{f"call_{number}": lambda x, *_: jnp.abs(x)})
    assert "the gradient of x" in check(net, ported.torch, [number], ported.calls)["x.abs()"]
