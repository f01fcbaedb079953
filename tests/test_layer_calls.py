"""A call of a layer with a wrong input: torch's class of error, and a text that names layer and argument.

Layers and inputs are those of against_torch/cases, in torch's layout. Where torch refuses an input of the
kinds below, jaxpar does, too; torch's AttributeError and AssertionError are TypeError and ValueError here.
"""

from __future__ import annotations

import importlib
import inspect
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from against_torch.layers import Case, _moves, _to_torch, torch_call
from flax import nnx

from jaxpar.nn import channels_first

KINDS = "activations attention conv embedding norms pools recurrent resize transformer"


def cases() -> dict[str, Case]:
    """The first case of each layer of channels_first that draws its inputs."""
    rows: dict[str, Case] = {}
    for kind in KINDS.split():
        for case in importlib.import_module(f"against_torch.cases.{kind}").CASES:
            name = case.torch.partition("(")[0]
            if hasattr(channels_first, name):
                rows.setdefault(name, case)
    return rows


CASES = cases()


def layer(case: Case) -> Any:
    """The layer of channels_first that a case makes, by torch's text where the layouts differ."""

    def constructor(public: Any) -> Any:
        extra = {"param_dtype": jnp.float32, "rngs": nnx.Rngs(0)}
        takes = inspect.signature(public).parameters
        return lambda *args, **kwargs: public(
            *args, **{k: v for k, v in extra.items() if k in takes}, **kwargs
        )

    layers = {name: getattr(channels_first, name) for name in channels_first.__all__}
    names = {k: constructor(v) if inspect.isclass(v) else v for k, v in layers.items()}
    same_layout = all(move is None for move in _moves(case))
    return eval((same_layout and case.jaxpar) or case.torch, names | {"torch": torch, "jnp": jnp})


def inputs(case: Case) -> list[np.ndarray]:
    random = np.random.RandomState(0)
    arrays = [
        x(random) if callable(x) else random.normal(size=x) if isinstance(x, tuple) else np.asarray(x)
        for x in case.inputs
    ]
    turned = [np.ascontiguousarray(_to_torch(x, c)) for x, c in zip(arrays, _moves(case), strict=True)]
    return [x.astype(np.float32) if x.dtype.kind == "f" else x for x in turned]


NO_ARRAYS = ("list", "None", "text", "number", "object", "dict", "text in an array")


def wrong(x: np.ndarray) -> Iterator[tuple[str, Any]]:
    yield "list", x.tolist()
    yield "None", None
    yield "text", "x"
    yield "number", 2.5
    yield "object", object()
    yield "dict", {"x": x}
    yield "text in an array", np.array(["a", "b"])
    yield "integers", x.astype(np.int32)
    yield "booleans", x.astype(bool)
    yield "no axes", x.reshape(-1)[0]
    yield "an axis more", x[None]
    yield "two axes more", x[None, None]
    yield "a longer last axis", np.concatenate([x, x[..., :1]], -1)
    if x.ndim > 1:
        yield "an axis less", x.reshape(-1, *x.shape[2:])
        yield "more channels", np.concatenate([x, x[:, :1]], 1)


# Where torch refuses what has an exact result: its kernels lack the type, or the number of axes.
ACCEPTED = {
    # torch takes int64 of some.
    "integers": "MaxPool1d|MaxUnpool.d|AvgPool.d|AdaptiveMaxPool.d|Unfold|Fold|LPPool.d",
    "booleans": "MaxUnpool.d|AvgPool.d|AdaptiveMaxPool.d|Re.*Pad.d|Unfold|Fold|LPPool.d",
    "an axis more": "AdaptiveAvgPool.d|Unfold",
    "two axes more": "AdaptiveAvgPool.d",
}


def answer(call: Callable[[], Any]) -> Exception | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call()
        except Exception as error:
            return error
    return None


def problem(case: Case, ours: Any, theirs: Any, i: int, kind: str, hostile: Any) -> str:
    """Return "" or what is wrong with jaxpar's answer to a hostile input number `i`."""
    name = type(ours).__name__

    def side(net: Any, array: Callable[[Any], Any]) -> Exception | None:
        values = [*inputs(case)]
        values[i] = hostile
        values = [
            array(x) if isinstance(x, (np.ndarray, np.generic)) and x.dtype.kind != "U" else x for x in values
        ]
        return answer(lambda: case.call(net, *values, **case.options))

    torchs = side(theirs, torch.tensor)
    if torchs is None and kind not in NO_ARRAYS:
        return ""
    jaxpars = side(ours, jnp.asarray)
    if kind in NO_ARRAYS and not re.match(rf"{name}: \w+ is .*; it must be an array", str(jaxpars)):
        return f"{kind} is answered by {jaxpars!r}"
    if torchs is None:
        return ""
    if jaxpars is None:
        return "" if re.fullmatch(ACCEPTED.get(kind, ""), name) else f"{kind} is accepted; torch: {torchs}"
    allowed = (TypeError,) if kind in NO_ARRAYS else (TypeError, ValueError, RuntimeError)
    if not isinstance(jaxpars, allowed):
        return f"{kind} is answered by {jaxpars!r}"
    text = "\n".join([str(jaxpars), *getattr(jaxpars, "__notes__", ())])
    return "" if re.search(rf"\b{name}\b", text) else f"{kind}: {text} does not name {name}"


def problems(case: Case, ours: Any) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = torch_call(case.torch)
    theirs.eval(), ours.eval()
    valid = answer(lambda: case.call(ours, *map(jnp.asarray, inputs(case)), **case.options))
    assert valid is None, valid
    return [
        wrong_answer
        for i, x in enumerate(inputs(case))
        if x.dtype != bool  # a mask, which may be absent
        for kind, hostile in wrong(x)
        if (wrong_answer := problem(case, ours, theirs, i, kind, hostile))
    ]


@pytest.mark.sampled(13)
@pytest.mark.parametrize("name", CASES)
def test_a_wrong_input_is_refused_by_the_layers_name(name):
    assert problems(CASES[name], layer(CASES[name])) == []


class Unchecked(nnx.Module):
    """A layer without checks: NumPy's and JAX's own answers."""

    def __call__(self, x):
        return jnp.asarray(x).mean()


def test_a_layer_without_checks_is_reported():
    wrong_answers = problems(CASES["LayerNorm"], Unchecked())
    assert any("list is answered by None" in text for text in wrong_answers)
    assert any("longer last axis is accepted" in text for text in wrong_answers)
    assert any(text.startswith("dict is answered by") for text in wrong_answers)


def test_linear_names_its_features_and_the_type_it_needs():
    linear = channels_first.Linear(3, 4, rngs=nnx.Rngs(0))
    with pytest.raises(
        RuntimeError, match=r"^Linear: x has shape \(2, 5\), whose last axis is not in_features=3\.$"
    ):
        linear(jnp.ones((2, 5)))
    with pytest.raises(RuntimeError, match=r"^Linear: x is an array of int.*x\.astype\(jnp\.float32\)"):
        linear(jnp.ones((2, 3), jnp.int32))
    with pytest.raises(TypeError, match=r"^Linear: x is .*; it must be an array: pass jnp\.asarray\(x\)\.$"):
        linear([[1.0, 2.0, 3.0]])


def test_an_error_of_a_function_in_a_layer_is_unchanged():
    def fail(x):
        raise KeyError("the user's")

    with pytest.raises(KeyError, match="the user's") as caught:
        channels_first.Sequential(channels_first.ReLU(), fail)(jnp.ones(2))
    assert not getattr(caught.value, "__notes__", ())


def test_a_wrong_call_draws_no_number():
    dropout = channels_first.Dropout(0.5, rngs=nnx.Rngs(0))
    count = int(dropout.rngs.count[...])
    with pytest.raises(TypeError, match=r"Dropout: x is 2\.0; it must be an array: pass"):
        dropout(2.0)
    assert dropout.rngs.count[...] == count


def test_an_array_with_no_axes_is_refused():
    with pytest.raises(RuntimeError, match=r"^GroupNorm: x has shape \(\); it must be \[N, C, \*S\]\.$"):
        channels_first.GroupNorm(2, 4)(jnp.ones(()))


def test_attention_refuses_keys_of_a_different_batch():
    attention = channels_first.MultiheadAttention(4, 2, rngs=nnx.Rngs(0))
    query, key = jnp.ones((3, 2, 4)), jnp.ones((4, 3, 4))
    with pytest.raises(RuntimeError, match="query has a batch of 2, but key and value 3"):
        attention(query, key, key)
    with pytest.raises(RuntimeError, match="was expecting key and value dimension of 4, but got 5"):
        attention(query, jnp.ones((3, 2, 5)), jnp.ones((3, 2, 5)))


def test_a_padded_batch_may_be_empty():
    assert channels_first.ReflectionPad2d(1)(jnp.ones((0, 2, 4, 4))).shape == (0, 2, 6, 6)
