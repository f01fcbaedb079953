"""scatter: torch.chunk's pieces, on their devices, and nothing lost."""

from __future__ import annotations

import collections
import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hosts import aligned

import jaxpar
from jaxpar import errors

CHUNKS = {  # docs/semantics.md row 15
    0: {2: (0, 0), 3: (0, 0, 0), 4: (0,) * 4, 8: (0,) * 8},
    1: {2: (1,), 3: (1,), 4: (1,), 8: (1,)},
    3: {2: (2, 1), 3: (1, 1, 1), 4: (1, 1, 1), 8: (1, 1, 1)},
    4: {2: (2, 2), 3: (2, 2), 4: (1,) * 4, 8: (1,) * 4},
    5: {2: (3, 2), 3: (2, 2, 1), 4: (2, 2, 1), 8: (1,) * 5},
    6: {2: (3, 3), 3: (2, 2, 2), 4: (2, 2, 2), 8: (1,) * 6},
    7: {2: (4, 3), 3: (3, 3, 1), 4: (2, 2, 2, 1), 8: (1,) * 7},
    9: {2: (5, 4), 3: (3, 3, 3), 4: (3, 3, 3), 8: (2, 2, 2, 2, 1)},
    10: {2: (5, 5), 3: (4, 4, 2), 4: (3, 3, 3, 1), 8: (2,) * 5},
    13: {2: (7, 6), 3: (5, 5, 3), 4: (4, 4, 4, 1), 8: (2,) * 6 + (1,)},
    15: {2: (8, 7), 3: (5, 5, 5), 4: (4, 4, 4, 3), 8: (2,) * 7 + (1,)},
    17: {2: (9, 8), 3: (6, 6, 5), 4: (5, 5, 5, 2), 8: (3,) * 5 + (2,)},
    36: {7: (6,) * 6},
}


# docs/semantics.md rows 15, 16
@pytest.mark.parametrize("B", CHUNKS)
def test_sizes_are_torch_chunk(B):
    for N, sizes in CHUNKS[B].items():
        shards = jaxpar.scatter(np.arange(B * 2.0).reshape(B, 2), range(N))
        assert shards.sizes == sizes
        assert len(shards) == len(sizes)
        assert [piece.shape for piece in shards] == [(size, 2) for size in sizes]


def test_sizes_equal_torch_for_every_batch_up_to_100():
    torch = pytest.importorskip("torch")
    from jaxpar._parallel.scatter import chunk_sizes

    for N in range(1, 17):
        for B in range(101):
            assert chunk_sizes(B, N) == tuple(len(c) for c in torch.arange(B).chunk(N)), (B, N)


# docs/semantics.md rows 15, 17
@pytest.mark.parametrize("source", [np.asarray, jnp.asarray, "device 3", "spread"])
def test_pieces_hold_the_rows_in_order_on_their_devices(source, devices):
    x = np.arange(30.0).reshape(10, 3)
    if source == "device 3":
        given = jax.device_put(x, devices[3])
    elif source == "spread":
        given = jax.device_put(x, jaxpar.Placement(tuple(devices[:4])).replicated)
    else:
        given = source(x)
    shards = jaxpar.scatter(given, [2, 0, 1, 3])
    for piece, rows, i in zip(shards, np.split(x, [3, 6, 9]), [2, 0, 1, 3], strict=True):
        np.testing.assert_array_equal(piece, rows)
        assert piece.devices() == {devices[i]}


def test_pieces_are_found_where_the_devices_stand_in_another_order(devices):
    """Shards are a pytree, and whoever puts them elsewhere chooses the order."""
    shards = jaxpar.scatter(np.arange(10.0), [0, 1, 2, 3])
    mesh = jax.sharding.Mesh(np.array(devices[:4]).reshape(2, 2), ("a", "b"))
    there = jax.device_put(shards, jax.sharding.NamedSharding(mesh, jax.P(("b", "a"))))
    assert [s.index[0].start or 0 for s in there.tree.addressable_shards] == [0, 2, 1, 3]
    for piece, same in zip(there, shards, strict=True):
        np.testing.assert_array_equal(piece, same)


# docs/semantics.md row 26; T-MG test_scatter_*_dim, *_neg_dim
@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
def test_any_dim(dim):
    x = np.arange(5 * 6 * 7).reshape(5, 6, 7)
    want = np.split(x, np.cumsum(jaxpar.scatter(x, range(4), dim).sizes)[:-1], dim)
    for source in (x, jnp.asarray(x)):
        for piece, rows in zip(jaxpar.scatter(source, range(4), dim), want, strict=True):
            np.testing.assert_array_equal(piece, rows)


Point = collections.namedtuple("Point", "x y")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Registered:
    image: object
    label: object


class Opaque:
    pass


# docs/semantics.md rows 19, 20, 21, 22
def test_containers_are_kept_and_other_leaves_are_shared_by_reference():
    x, thing = np.arange(4.0), Opaque()
    tree = {
        "tuple": (x, "text", None),
        "list": [x, [x, 3]],
        "named": Point(x, 2.5),
        "ordered": collections.OrderedDict(b=x, a=True),
        "default": collections.defaultdict(list, k=x),
        "dataclass": Registered(x, "seven"),
        "strings": ["a", "b", "c"],
        "empty": ((), [], {}),
        "thing": thing,
    }
    first, second = jaxpar.scatter(tree, [0, 1])
    assert jax.tree.structure(first) == jax.tree.structure(tree)
    assert first["thing"] is second["thing"] is thing
    assert first["strings"] == ["a", "b", "c"]
    assert first["empty"] == ((), [], {})
    assert isinstance(first["named"], Point)
    assert first["named"].y == 2.5
    assert isinstance(first["dataclass"], Registered)
    np.testing.assert_array_equal(first["tuple"][0], [0, 1])
    np.testing.assert_array_equal(second["ordered"]["b"], [2, 3])


# docs/semantics.md rows 28, 29
@pytest.mark.parametrize(("inputs", "k"), [((), 1), ({}, 1), (None, 1), ("text", 3), ((1, 2.5), 3)])
def test_without_arrays(inputs, k):
    shards = jaxpar.scatter(inputs, range(3))
    assert len(shards) == k
    assert shards[0] == inputs


# docs/semantics.md row 27: torch pads the shorter of two lists, with a slip; here it is one batch
def test_kwargs_are_split_with_the_arguments():
    inputs, kwargs = jaxpar.scatter_kwargs((np.arange(2.0), 7), {"y": np.arange(2.0), "flag": True}, range(4))
    assert len(inputs) == len(kwargs) == 2
    assert kwargs[1]["flag"] is True
    assert inputs[1][1] == 7
    np.testing.assert_array_equal(kwargs[1]["y"], [1])


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "bfloat16", "float16", "complex128", "int8", "uint32", "int64", "bool"]
)
def test_dtypes_are_kept(dtype):
    x = jnp.arange(10).astype(dtype)
    for source in (x, np.asarray(x)):
        shards = jaxpar.scatter(source, range(4))
        assert shards[0].dtype == x.dtype
        np.testing.assert_array_equal(np.concatenate([np.asarray(p) for p in shards]), np.asarray(x))


@pytest.mark.full
def test_random_keys_are_rows_too():
    keys = jax.random.split(jax.random.key(0), 5)
    shards = jaxpar.scatter(keys, range(2))
    np.testing.assert_array_equal(
        np.concatenate([jax.random.key_data(k) for k in shards]), jax.random.key_data(keys)
    )
    columns = jax.random.split(jax.random.key(1), (3, 5))
    for piece, want in zip(
        jaxpar.scatter(columns, range(2), 1), (columns[:, :3], columns[:, 3:]), strict=True
    ):
        np.testing.assert_array_equal(jax.random.key_data(piece), jax.random.key_data(want))


def test_the_pieces_of_a_host_batch_never_meet_on_one_device(devices):
    """Straight to each device: nothing the size of the batch is ever on the first one."""
    x = np.zeros((4096, 257))
    before = {id(a) for a in jax.live_arrays()}
    shards = jaxpar.scatter(x, range(4))
    made = [a for a in jax.live_arrays() if id(a) not in before]
    largest = max(s.data.size for a in made for s in a.addressable_shards)
    assert largest == 1024 * 257
    assert len(shards) == 4


@pytest.mark.parametrize("B", [8, 7])
@pytest.mark.parametrize("columns", [8, 40_000])
def test_a_host_batch_may_be_written_to_again(B, columns, devices):
    batch = aligned((B, columns))
    pieces = jaxpar.scatter(batch, devices[:4])
    batch[:] = 1
    assert not any(np.asarray(piece).any() for piece in pieces)


def test_slices_and_negative_indices():
    shards = jaxpar.scatter(np.arange(10.0), range(4))
    np.testing.assert_array_equal(shards[-1], [9])
    assert [len(p) for p in shards[1:3]] == [3, 3]
    with pytest.raises(IndexError, match="replica 4 of 4"):
        shards[4]


def test_shards_are_a_pytree_with_static_sizes():
    shards = jaxpar.scatter({"x": np.arange(10.0), "name": "ten"}, range(4))
    doubled = jax.jit(lambda s: jax.tree.map(lambda a: 2 * a, s))(shards)
    assert doubled.sizes == shards.sizes
    assert doubled.tree["name"] == "ten"
    np.testing.assert_array_equal(doubled[3]["x"], [18])


def test_inside_jit():
    @jax.jit
    def pieces(x):
        return tuple(jaxpar.scatter(x, range(4)))

    for got, want in zip(pieces(np.arange(10.0)), [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]], strict=True):
        np.testing.assert_array_equal(got, want)


# T-DP test_scatter_cpu, test_scatter_gpu: a partial backward fills only its rows
@pytest.mark.full
@pytest.mark.parametrize("dim", [0, 1])
def test_gradients_come_home_to_their_rows(dim):
    x = jnp.arange(16.0).reshape(4, 4)
    gradient = jax.grad(
        lambda x: (jax.device_put(jaxpar.scatter(x, (0, 1), dim)[1], jax.devices()[0]) ** 2).sum()
    )(x)
    want = np.where(np.arange(4) < 2, 0, 1) * (2 * x.swapaxes(0, 1) if dim == 0 else 2 * x)
    want = want.T if dim == 0 else want
    np.testing.assert_array_equal(gradient, np.where(want != 0, 2 * x, 0))


# ------------------------------------------------------------------------------------------ bad input


# docs/semantics.md row 24: torch runs 1 of 8 rows without a word
def test_different_row_counts():
    message = r"scatter: inputs\[0\]\['image'\] has 8 rows and inputs\[1\] has 1\. All arrays of one batch"
    with pytest.raises(errors.RowsError, match=message) as caught:
        jaxpar.scatter(({"image": np.zeros((8, 2))}, np.zeros(1)), [0, 1])
    assert isinstance(caught.value, ValueError)


# docs/semantics.md row 23: a PackedSequence is a namedtuple whose two tensors torch tears apart
def test_a_packed_sequence_is_refused():
    Packed = collections.namedtuple("Packed", "data batch_sizes sorted_indices unsorted_indices")
    with pytest.raises(errors.RowsError, match=r"inputs\.data has 9 rows and inputs\.batch_sizes has 4"):
        jaxpar.scatter(Packed(np.zeros((9, 2)), np.array([4, 3, 1, 1]), None, None), [0, 1])


# docs/semantics.md row 27: torch calls replica 2 without its arguments
def test_argument_and_keyword_with_other_row_counts():
    with pytest.raises(errors.RowsError, match=r"inputs\[1\] has 2 rows and kwargs\['y'\] has 4"):
        jaxpar.scatter_kwargs(("flag", np.zeros(2)), {"x": None, "y": np.zeros(4)}, range(4))


# docs/semantics.md row 25
@pytest.mark.parametrize("ids", [[0, 1], [0]])
def test_an_array_without_axes(ids):
    message = (
        r"inputs\['t'\] has no axes \(chunk expects at least a 1-dimensional tensor\); pass jaxpar\.repl"
    )
    with pytest.raises(errors.NoRowsError, match=message) as caught:
        jaxpar.scatter({"t": jnp.float32(1.0)}, ids)
    assert isinstance(caught.value, RuntimeError)


# docs/semantics.md row 26
def test_dim_out_of_range():
    message = r"expected to be in range of \[-1, 0\], but got 1\): inputs\[1\] has shape \(8,\)"
    with pytest.raises(errors.DimError, match=message) as caught:
        jaxpar.scatter((np.zeros((3, 8)), np.zeros(8)), [0, 1], dim=1)
    assert isinstance(caught.value, IndexError)


@pytest.mark.parametrize("array", [np.array(["a", "b"]), np.array([{}, {}]), np.array([b"x", b"y"])])
def test_text_and_object_arrays(array):
    with pytest.raises(errors.LeafError, match=r"inputs\['ids'\]\[1\] has dtype .*no device can hold"):
        jaxpar.scatter({"ids": [np.zeros(2), array]}, [0, 1])


def test_another_librarys_tensor():
    torch = pytest.importorskip("torch")
    with pytest.raises(errors.LeafError, match=r"inputs\[0\] is a torch\.Tensor; .*\.numpy\(\)"):
        jaxpar.scatter((torch.zeros(4),), [0, 1])


def test_a_container_that_jax_does_not_know():
    class Mine(dict):
        pass

    with pytest.raises(
        errors.LeafError, match=r"inputs\[0\] is a .*Mine, a container that JAX does not know.*plain dict"
    ):
        jaxpar.scatter((Mine(x=np.zeros(4)),), [0, 1])


def test_integers_that_would_wrap():
    with jax.enable_x64(False):
        with pytest.raises(
            errors.RangeError, match=r"inputs is int64 with values from 0 to 1099511627776.*int32"
        ):
            jaxpar.scatter(np.array([0, 2**40]), [0, 1])
        assert jaxpar.scatter(np.array([0, 7]), [0, 1])[1].dtype == np.int32


def test_a_deleted_array(devices):
    x = jax.device_put(jnp.zeros((8, 2)), jaxpar.Placement(tuple(devices)).stacked)
    x.delete()
    with pytest.raises(errors.DeletedError, match=r"scatter: inputs\['x'\] \(float64\[8, 2\]\) was donated"):
        jaxpar.scatter({"x": x}, [0, 1])


def test_nothing_is_changed_in_the_callers_tree():
    tree = {"x": [np.arange(4.0)]}
    with warnings.catch_warnings():
        jaxpar.scatter(tree, [0, 1])
    assert isinstance(tree["x"][0], np.ndarray)


@pytest.mark.parametrize("value", [1e300, -1e300])
def test_a_float_that_would_become_infinite(value):
    with jax.enable_x64(False):
        with pytest.raises(errors.RangeError, match=r"inputs is float64 .* make infinity of them in float32"):
            jaxpar.scatter(np.array([1.0, np.inf, np.nan, value]), [0, 1])
        jaxpar.scatter(np.array([1.0, np.inf, np.nan, 3e38], "f4"), [0, 1])
        with pytest.warns(UserWarning, match="becomes float32"):
            jaxpar.scatter({f"finite {value}": np.array([1.0, np.inf, np.nan, 3e38])}, [0, 1])
        with pytest.raises(
            errors.RangeError, match=r"inputs\.imag is float64 .* make infinity of them in float32"
        ):
            jaxpar.scatter(np.array([1.0, 1j * value]), [0, 1])


def test_a_float_that_is_narrowed_is_said_once_for_each_leaf():
    batch = {"said once": np.ones(4), "not": np.ones(4, np.float32), "int": np.ones(4, np.int64)}
    with jax.enable_x64(False):
        with pytest.warns(UserWarning, match="becomes float32") as said:
            jaxpar.scatter(batch, [0, 1])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            jaxpar.scatter(batch, [0, 1])
    (one,) = said
    assert str(one.message) == (
        "scatter: inputs['said once'] is float64 and becomes float32, because jax_enable_x64 is off. Turn it "
        "on, or convert before: inputs['said once'].astype(np.float32)."
    )


FORMS = {
    "longdouble": (np.ones(4, np.longdouble), r"long double.* inputs\.astype\(np\.float64\)"),
    "clongdouble": (np.ones(4, np.clongdouble), r"long double.* inputs\.astype\(np\.complex128\)"),
    "big-endian": (np.ones(4, ">f4"), r"inputs is >f4, whose byte order .*newbyteorder"),
    "masked": (np.ma.masked_array([1.0, 2.0], mask=[True, False]), r"masked array.* inputs\.filled\(0\)"),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_numpy_holds_and_no_device(form):
    array, text = FORMS[form]
    for send in (lambda: jaxpar.scatter(array, [0, 1]), lambda: jaxpar.to(array, 1)):
        with pytest.raises(errors.LeafError, match=text.replace("inputs", "(inputs|x)")):
            send()
