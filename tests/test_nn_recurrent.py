"""RNN, LSTM and GRU of jaxpar.nn against torch.nn: the law's table, lengths, dropout, bad input."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparing import assert_equal_numbers, assert_equal_trees
from flax import linen, nnx
from jax.extend.core import jaxprs_in_params
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jaxpar
from jaxpar.nn import functional as F

torch = pytest.importorskip("torch")
from against_torch.cases.recurrent import CASES, REFUSED  # noqa: E402
from against_torch.layers import TOLERANCE, difference, refusal, round_trip  # noqa: E402

torch.set_num_threads(1)

F64 = {"param_dtype": jnp.float64}
X = np.random.RandomState(0).randn(5, 4, 3)
LENGTHS = np.array([3, 5, 1, 4])


def everyday(case) -> bool:
    """GRU and RNN are stacked by the code that LSTM is: of their stacks only the one with everything."""
    return case.torch.startswith("LSTM") or "Cell" in case.torch or len(case.inputs) > 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "case", [c if everyday(c) else pytest.param(c, marks=pytest.mark.long) for c in CASES], ids=str
)
def test_five_steps_equal_torch(case):
    assert difference(case) <= TOLERANCE


LAYERS = {case.torch: case for case in CASES}


@pytest.mark.parametrize("layer", LAYERS)
def test_weights_come_back_as_they_were(layer):
    assert round_trip(LAYERS[layer])


@pytest.mark.parametrize("row", REFUSED, ids=str)
def test_refusals(row):
    assert refusal(row)


@pytest.fixture(scope="module")
def net():
    return jaxpar.nn.LSTM(3, 2, 2, bidirectional=True, **F64, rngs=nnx.Rngs(0))


def flat(result) -> dict:
    return dict(zip(["output", "h", "c"], jax.tree.leaves(result), strict=True))


@pytest.mark.full
def test_padding_is_not_read(net):
    """Not even where it is NaN, and nothing of it comes back in gradients."""
    past = np.arange(5)[:, None, None] >= LENGTHS[:, None]
    graph, state = nnx.split(net)

    @jax.jit
    def run(state, x, lengths):
        def loss(state, x):
            results = nnx.merge(graph, state)(x, lengths=lengths)
            return sum((y**2).sum() for y in jax.tree.leaves(results)), results

        return jax.grad(loss, (0, 1), has_aux=True)(state, x)

    (by_weights, by_x), results = run(state, np.where(past, np.nan, X), LENGTHS)
    (want_by_weights, want_by_x), want = run(state, np.where(past, 0, X), LENGTHS)
    assert_equal_trees("results", flat(results), flat(want), 0.0)
    assert_equal_numbers("input gradient", by_x, want_by_x, 0.0)
    for ours, theirs in zip(jax.tree.leaves(by_weights), jax.tree.leaves(want_by_weights), strict=True):
        assert np.isfinite(ours).all()
        assert_equal_numbers("gradient", ours, theirs, 0.0)
    assert not np.asarray(by_x)[np.broadcast_to(past, X.shape)].any()
    assert not np.asarray(results[0])[np.broadcast_to(past, results[0].shape)].any()


@pytest.mark.full
def test_a_sequence_by_itself_is_the_sequence_in_a_batch(net):
    output, (h, c) = net(X, lengths=LENGTHS)
    for b in (1, 2):
        length = LENGTHS[b]
        alone, (h_alone, c_alone) = net(X[:length, b])
        assert_equal_numbers("output", output[:length, b], alone, 1e-14)
        assert_equal_numbers("h", h[:, b], h_alone, 1e-14)
        assert_equal_numbers("c", c[:, b], c_alone, 1e-14)


@pytest.mark.full
def test_dropout_lies_between_the_layers(net):
    """The same mask in hand gives the same as the layers one by one."""
    params = {name: p[...] for name, p in nnx.state(net).items()}
    layers = [
        {name.replace("_l1", "_l0"): p for name, p in params.items() if f"_l{k}" in name} for k in range(2)
    ]
    key = jax.random.key(0)
    whole, _ = F.lstm(X, None, params, dropout=0.5, key=key)
    first, _ = F.lstm(X, None, layers[0])
    dropped = F.dropout(first, 0.5, key=jax.random.split(key)[1])
    assert 0.3 < np.mean(np.asarray(dropped) == 0) < 0.7
    second, _ = F.lstm(dropped, None, layers[1])
    assert_equal_numbers("output", whole, second, 1e-14)


def test_dropout_is_for_training_and_new_in_every_call():
    net = jaxpar.nn.GRU(3, 2, 2, dropout=0.5, **F64, rngs=nnx.Rngs(0, dropout=1))
    assert not np.array_equal(net(X)[0], net(X)[0])
    net.eval()
    assert_equal_numbers("evaluation", net(X)[0], net(X)[0], 0.0)
    with pytest.raises(ValueError, match=r"GRU: dropout=0.5 in training needs key, a jax.random.key"):
        F.gru(X, None, {name: p[...] for name, p in nnx.state(net, nnx.Param).items()}, dropout=0.5)


def test_dropout_of_one_layer_warns_as_torch():
    text = "dropout option adds dropout after all but last recurrent layer"
    with pytest.warns(UserWarning, match=text) as ours:
        jaxpar.nn.LSTM(3, 2, dropout=0.5, rngs=nnx.Rngs(0))
    with pytest.warns(UserWarning, match=text) as theirs:
        torch.nn.LSTM(3, 2, dropout=0.5)
    assert str(ours[0].message) == str(theirs[0].message)
    assert ours[0].filename == __file__


@pytest.mark.parametrize("form", ["LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell"])
def test_initial_values_are_uniform(form):
    net = getattr(jaxpar.nn, form)(30, 25, rngs=nnx.Rngs(0))
    for p in jax.tree.leaves(nnx.state(net)):
        assert 0.15 < np.abs(p).max() <= 0.2
        assert abs(p.mean()) < 0.05
        assert p.dtype == jnp.float32


@pytest.mark.full
def test_types():
    x = X.astype(np.float32)
    assert jaxpar.nn.LSTM(3, 2, rngs=nnx.Rngs(0))(x)[0].dtype == jnp.float32
    half = jaxpar.nn.LSTM(3, 2, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    output, (h, c) = half(x)
    assert output.dtype == h.dtype == c.dtype == jnp.bfloat16
    assert jaxpar.nn.GRUCell(3, 2, dtype=jnp.float16, rngs=nnx.Rngs(0))(x[0]).dtype == jnp.float16


def scans(jaxpr):
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            yield equation
        else:
            for inner in jaxprs_in_params(equation.params):
                yield from scans(inner)


def test_one_product_in_the_loop(net):
    """Forward the one with the state; backward the one that brings its gradient, and no weight's."""
    forward = jax.make_jaxpr(net)(X).jaxpr
    assert [str(scan.params["jaxpr"]).count("dot_general[") for scan in scans(forward)] == [1] * 4
    graph, state = nnx.split(net)
    backward = jax.make_jaxpr(jax.grad(lambda s: (nnx.merge(graph, s)(X)[0] ** 2).sum()))(state).jaxpr
    assert [str(scan.params["jaxpr"]).count("dot_general[") for scan in scans(backward)] == [1] * 8


@pytest.mark.parametrize("batch_first", [False, True])
def test_a_batch_that_is_divided_stays_divided(batch_first):
    """Only gradients of weights meet; a product with steps and sequences in one axis gathers everything."""
    lstm = jaxpar.nn.LSTM(3, 2, batch_first=batch_first, rngs=nnx.Rngs(0))
    graph, state = nnx.split(lstm)
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
    by_row = NamedSharding(mesh, PartitionSpec(*[None] * (not batch_first), "data"))

    def program(flatten):
        def loss(state, x):
            return (nnx.merge(graph, state)(flatten(x))[0] ** 2).sum()

        x = jax.ShapeDtypeStruct((8, 8, 3), float, sharding=by_row)
        return jax.jit(jax.grad(loss)).lower(state, x).compile().as_text()

    text = program(lambda x: x)
    assert "all-reduce" in text
    assert "all-gather" not in text
    if not batch_first:
        assert "all-gather" in program(lambda x: (x.reshape(-1, 3) @ np.eye(3)).reshape(x.shape))


@pytest.mark.slow
def test_all_kinds_of_derivatives(net):
    """By central differences: forward mode, and forward over reverse."""
    params = {name: p[...] for name, p in nnx.state(net).items()}
    random = np.random.RandomState(1)
    along = {name: random.randn(*p.shape) for name, p in params.items()}

    @jax.jit
    def loss(params):
        output, (h, c) = F.lstm(X, None, params, lengths=LENGTHS)
        return (output**2).sum() + (h * c).sum()

    def at(e):
        return {name: p + e * along[name] for name, p in params.items()}

    e = 1e-5
    by_forward = jax.jvp(loss, (params,), (along,))[1]
    assert_equal_numbers("forward mode", by_forward, (loss(at(e)) - loss(at(-e))) / (2 * e), 1e-7)
    gradient = jax.jit(jax.grad(loss))
    curvature = jax.jvp(gradient, (params,), (along,))[1]
    plus, minus = gradient(at(e)), gradient(at(-e))
    for name, found in curvature.items():
        assert_equal_numbers(name, found, (plus[name] - minus[name]) / (2 * e), 1e-6)


def test_the_functions_are_for_linen():
    class Tagger(linen.Module):
        @linen.compact
        def __call__(self, x):
            shapes = {"weight_ih_l0": (3, 6), "weight_hh_l0": (2, 6), "bias_ih_l0": (6,), "bias_hh_l0": (6,)}
            init = linen.initializers.normal()
            return F.gru(x, None, {n: self.param(n, init, s, jnp.float64) for n, s in shapes.items()})

    variables = Tagger().init(jax.random.key(0), X)
    output, h = Tagger().apply(variables, X)
    assert_equal_numbers("the last output is the state", output[-1], h[0], 0.0)


class Outputs(nnx.Module):
    """States have the layers first, so they are not what DataParallel gathers."""

    def __init__(self):
        self.lstm = jaxpar.nn.LSTM(3, 2, batch_first=True, **F64, rngs=nnx.Rngs(0))

    def __call__(self, x, lengths):
        return self.lstm(x, lengths=lengths)[0]


@pytest.mark.full
def test_uneven_replicas():
    """Sequences split over devices are the sequences on one."""
    net, x, lengths = Outputs(), X.swapaxes(0, 1)[:3], LENGTHS[:3]
    got = jaxpar.DataParallel(net, [0, 1])(x, lengths)
    assert_equal_numbers("outputs", got, net(x, lengths), 1e-14)


BAD_CALLS = {
    "axes": (lambda n: n(X[None]), ValueError, "LSTM: Expected input to be 2D or 3D, got 4D instead"),
    "width": (
        lambda n: n(X[..., :2]),
        RuntimeError,
        "input.size\\(-1\\) must be equal to input_size. Expected 3, got 2",
    ),
    "no steps": (lambda n: n(X[:0]), RuntimeError, "Expected sequence length to be larger than 0 in RNN"),
    "states": (
        lambda n: n(X, (np.zeros((4, 4, 3)), np.zeros((4, 4, 2)))),
        RuntimeError,
        r"Expected hidden\[0\] size \(4, 4, 2\), got \[4, 4, 3\]",
    ),
    "one state": (lambda n: n(X, (np.zeros((4, 4, 2)),)), RuntimeError, "LSTM: hx has 1 states, not 2"),
    "batch of a state": (
        lambda n: n(X[:, 0], (np.zeros((4, 1, 2)), np.zeros((4, 1, 2)))),
        RuntimeError,
        r"Expected hidden\[0\] size \(4, 2\), got \[4, 1, 2\]",
    ),
    "a length of 0": (
        lambda n: n(X, lengths=[1, 2, 0, 3]),
        RuntimeError,
        "Length of all samples has to be greater than 0",
    ),
    "a long length": (
        lambda n: n(X, lengths=[1, 2, 6, 3]),
        ValueError,
        "LSTM: a length of 6 for sequences of 5 steps",
    ),
    "lengths": (lambda n: n(X, lengths=[1, 2]), ValueError, r"one length for each of the 4 sequences"),
    "lengths of one": (lambda n: n(X[:, 0], lengths=[1]), ValueError, "lengths are for batched input"),
    "a weight": (
        lambda n: F.lstm(X, None, {"weight_ih_l0": np.ones((3, 8))}),
        ValueError,
        r"stack of 1 layers: missing \['weight_hh_l0'\], unknown \[\]",
    ),
    "no weights": (lambda n: F.lstm(X, None, {}), ValueError, r"missing \['weight_hh_l0', 'weight_ih_l0'\]"),
    "a projection": (
        lambda n: F.gru(X, None, dict.fromkeys(["weight_ih_l0", "weight_hh_l0", "weight_hr_l0"], X[0])),
        ValueError,
        "proj_size argument is only supported for LSTM, not RNN or GRU",
    ),
    "a cell's axes": (
        lambda n: F.gru_cell(X, None, np.ones((3, 6)), np.ones((2, 6))),
        ValueError,
        "GRUCell: Expected input to be 1D or 2D, got 3D instead",
    ),
    "a cell's width": (
        lambda n: F.gru_cell(X[0], None, np.ones((2, 6)), np.ones((2, 6))),
        RuntimeError,
        "GRUCell: input has inconsistent input_size: got 3 expected 2",
    ),
    "a cell's state": (
        lambda n: F.rnn_tanh_cell(X[0], np.ones((4, 3)), np.ones((3, 2)), np.ones((2, 2))),
        RuntimeError,
        r"RNNCell: Expected hx\[0\] of shape \(4, 2\)",
    ),
    "half of the biases": (
        lambda n: F.lstm_cell(X[0], None, np.ones((3, 8)), np.ones((2, 8)), np.ones(8)),
        ValueError,
        "LSTMCell: bias_ih and bias_hh come together or not at all",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_calls(name, net):
    call, error, message = BAD_CALLS[name]
    with pytest.raises(error, match=message):
        call(net)
