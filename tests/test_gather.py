"""gather: one output, in order, on its device; what does not fit together raises."""

from __future__ import annotations

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpar
from jaxpar import errors

SCALARS = "Was asked to gather along dimension 0, but all input tensors were scalars"


# T-DP _test_gather; docs/semantics.md rows 58, 65
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("target", [None, 0, 1, 5, "cpu:3"])
def test_list_is_concatenated_on_the_target(dim, target, devices):
    pieces = [jax.device_put(np.full((2, 3), i), devices[i]) for i in range(3)]
    got = jaxpar.gather(pieces, target, dim)
    np.testing.assert_array_equal(got, np.concatenate([np.full((2, 3), i) for i in range(3)], dim))
    assert got.devices() == {devices[{None: 0, "cpu:3": 3}.get(target, target)]}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("N", [2, 3, 8])
@pytest.mark.parametrize("B", [0, 1, 5, 16])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gather_undoes_scatter(N, B, dim):
    x = np.moveaxis(np.arange(B * 6.0).reshape(B, 2, 3), 0, dim)
    shards = jaxpar.scatter({"x": x, "y": (x.astype(int),)}, range(N), dim)
    got = jaxpar.gather(shards)
    np.testing.assert_array_equal(got["x"], x)
    np.testing.assert_array_equal(got["y"][0], x.astype(int))
    assert got["x"].dtype == x.dtype
    if len(shards) > 0:
        np.testing.assert_array_equal(jaxpar.gather(list(shards), dim=dim)["x"], x)


def test_inside_jit_no_device_holds_all_of_it():
    @jax.jit
    def there_and_back(x):
        return jaxpar.gather(jaxpar.scatter(x, range(8)), 3)

    got = there_and_back(np.arange(16.0))
    np.testing.assert_array_equal(got, np.arange(16.0))
    assert [s.data.size for s in got.addressable_shards] == [2] * 8


Point = collections.namedtuple("Point", "x y")


def test_an_array_is_no_list_of_outputs():
    with pytest.raises(TypeError, match=r"outputs are ArrayImpl; give jaxpar\.Shards, or a list"):
        jaxpar.gather(jnp.ones((2, 3)))


# docs/semantics.md rows 58, 61; T-MG test_gather_namedtuple; T-DP test_data_parallel_nested_output
def test_containers_are_kept():
    one = [
        jnp.zeros((2, 1)),
        (None, collections.OrderedDict(b=jnp.ones(2), a=())),
        Point(jnp.ones((2, 2)), []),
    ]
    got = jaxpar.gather([one, one], 0)
    assert jax.tree.structure(got) == jax.tree.structure(one)
    assert isinstance(got[2], Point)
    assert list(got[1][1]) == ["b", "a"]
    assert got[2].x.shape == (4, 2)


# docs/semantics.md row 60; T-DP _test_gather scalars
def test_scalars_become_a_vector():
    with pytest.warns(UserWarning, match=SCALARS):
        got = jaxpar.gather([jnp.float64(3.0), jnp.float64(4.0)], 0)
    np.testing.assert_array_equal(got, [3, 4])


def test_scalars_keep_their_gradients():
    def loss(pieces):
        with pytest.warns(UserWarning, match=SCALARS):
            return jaxpar.gather(list(pieces)) @ jnp.array([2.0, 5.0])

    np.testing.assert_array_equal(jax.grad(loss)((1.0 * jnp.ones(()), jnp.ones(()))), (2, 5))


# T-DP _test_gather: the gradient is split
def test_gradients_are_split(devices):
    pieces = [jax.device_put(jnp.ones((2, 2)), devices[0]), jax.device_put(jnp.ones((3, 2)), devices[1])]
    weight = np.arange(10.0).reshape(5, 2)
    first, second = jax.grad(lambda p: (jaxpar.gather(p, 0) * weight).sum())(pieces)
    np.testing.assert_array_equal(first, weight[:2])
    np.testing.assert_array_equal(second, weight[2:])
    assert second.devices() == {devices[1]}


# docs/semantics.md row 65
def test_minus_one_is_the_cpu_with_torchs_warning():
    with pytest.warns(FutureWarning, match="Using -1 to represent CPU tensor is deprecated"):
        got = jaxpar.gather([jnp.ones(1), jnp.ones(1)], -1)
    assert got.devices() == {jax.devices("cpu")[0]}


# ------------------------------------------------------------------------------------------ bad input


def raises(outputs, error, message, dim=0):
    with pytest.raises(error, match=message) as caught:
        jaxpar.gather(outputs, 0, dim)
    return caught.value


x = np.zeros((2, 3))


# docs/semantics.md row 58; T-DP test_gather_different_len_dicts
def test_dicts_with_other_keys():
    error = raises(
        [{"a": x}, {"a": x, "b": x}],
        errors.GatherError,
        r"All dicts must have the same number of keys: .*\['a'\] and replica 1 has \['a', 'b'\]",
    )
    assert isinstance(error, ValueError)
    raises([{"a": x}, {"b": x}], errors.GatherError, r"All dicts must have the same keys")


# docs/semantics.md row 59
def test_other_lengths_and_structures():
    raises([[x, x], [x]], errors.GatherError, "replica 1 returned")
    raises([(x,), [x]], errors.GatherError, "the same structure")
    raises([None, x], errors.GatherError, "the same structure")


# docs/semantics.md row 63
def test_other_shapes():
    raises(
        [x, np.zeros((2, 4))],
        errors.GatherError,
        r"outputs: Input tensor at index 1 has invalid shape \[2, 4\], but expected \[2, 3\]",
    )
    raises(
        [x, np.zeros(2)],
        errors.GatherError,
        "same number of dimensions, but tensor at index 1 has 1 dimensions",
    )


# docs/semantics.md row 62: torch casts to the first one's dtype without a word
def test_other_dtypes():
    raises(
        [np.array([1, 2]), np.array([1.7])],
        errors.GatherError,
        "int64 on replica 0 and float64 on replica 1; torch would cast",
    )
    raises(
        [np.ones(2, np.float32), np.ones(2)],
        errors.GatherError,
        "float32 on replica 0 and float64 on replica 1; torch would cast",
    )


# docs/semantics.md row 61: text comes back from torch as '<map object at 0x..>'
@pytest.mark.parametrize("leaf", ["text", 1, 2.5, True, object()])
def test_leaves_that_are_no_arrays(leaf):
    error = raises(
        [{"n": [x, leaf]}] * 2,
        errors.GatherTypeError,
        rf"outputs\['n'\]\[1\] of replica 0 is of type {type(leaf).__name__}",
    )
    assert isinstance(error, TypeError)


# docs/semantics.md row 60
def test_scalars_along_another_dim():
    raises([jnp.ones(()), jnp.ones(())], errors.DimError, "only dim=0", dim=1)
    raises([jnp.ones(()), jnp.ones(())], errors.DimError, "only dim=0", dim=-1)


def test_scalar_and_vector():
    raises([jnp.ones(()), jnp.ones(1)], errors.GatherError, "same number of dimensions")


def test_dim_out_of_range():
    raises([x, x], errors.DimError, r"range of \[-2, 1\], but got 2", dim=2)


def test_nothing():
    raises([], errors.GatherError, "no outputs")


def test_deleted_outputs():
    """JAX would say so without a path, or end the process."""
    gone = jnp.ones((2, 3))
    gone.delete()
    with pytest.raises(
        errors.DeletedError, match=r"gather: outputs\[1\]\['y'\] \(float64\[2, 3\]\) was donated"
    ):
        jaxpar.gather([{"y": jnp.ones((2, 3))}, {"y": gone}])
    shards = jaxpar.scatter({"y": np.ones((4, 3))}, [0, 1])
    shards.tree["y"].delete()
    with pytest.raises(
        errors.DeletedError, match=r"gather: outputs\['y'\] \(float64\[2, 2, 3\]\) was donated"
    ):
        jaxpar.gather(shards)


def test_outputs_that_no_device_holds():
    with pytest.raises(errors.LeafError, match=r"gather: outputs\[0\] is >f8, whose byte order"):
        jaxpar.gather([np.ones((2, 3), ">f8")] * 2)
