"""jaxpar.nn.channels_last: torch's layers and functions of images [N, H, W, C], against torch in float64."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from comparing import assert_equal_numbers
from flax import nnx

import jaxpar
import jaxpar.nn.channels_first as first
import jaxpar.nn.channels_last as ours
import jaxpar.nn.channels_last.functional as F
from jaxpar import parity
from jaxpar.parity._port.images import tables

IMAGE, LINE, ROW = (2, 4, 8, 9), (2, 4, 9), (4, 8, 9)
LAYERS = [
    ("Conv2d", (4, 6, 3), {"stride": 2, "padding": 1, "groups": 2}, IMAGE),
    ("Conv2d", (4, 6, 3), {}, ROW),
    ("ConvTranspose2d", (4, 6, 3), {"stride": 2, "padding": 1, "groups": 2}, IMAGE),
    ("BatchNorm2d", (4,), {}, IMAGE),
    ("InstanceNorm2d", (4,), {"track_running_stats": True}, IMAGE),
    ("GroupNorm", (2, 4), {}, IMAGE),
    ("GroupNorm", (2, 4), {}, LINE),
    ("LocalResponseNorm", (3,), {}, IMAGE),
    ("PReLU", (4,), {}, IMAGE),
    ("PReLU", (4,), {}, LINE),
    ("MaxPool2d", (3, 2), {"padding": 1, "ceil_mode": True}, IMAGE),
    ("MaxPool2d", (2,), {}, ROW),
    ("AvgPool2d", (3, 2), {"padding": 1, "count_include_pad": False}, IMAGE),
    ("LPPool2d", (2, 3), {}, IMAGE),
    ("AdaptiveAvgPool2d", ((3, 4),), {}, IMAGE),
    ("AdaptiveMaxPool2d", ((3, 4),), {}, IMAGE),
    ("ConstantPad2d", ((1, 2, 0, 1), 0.5), {}, IMAGE),
    ("ZeroPad2d", (1,), {}, IMAGE),
    ("ReflectionPad2d", ((1, 2, 3, 0),), {}, IMAGE),
    ("ReplicationPad2d", ((1, 2, 3, 0),), {}, IMAGE),
    ("CircularPad2d", ((1, 2, 3, 0),), {}, IMAGE),
    ("Dropout2d", (0.0,), {}, IMAGE),
    ("Upsample", (), {"scale_factor": 2, "mode": "bilinear"}, IMAGE),
    ("Upsample", (), {"scale_factor": 2}, LINE),
    ("PixelShuffle", (2,), {}, IMAGE),
    ("PixelUnshuffle", (2,), {}, (2, 4, 8, 6)),
    ("ChannelShuffle", (2,), {}, IMAGE),
    ("Unfold", (3,), {"padding": 1}, IMAGE),
    ("Fold", ((4, 5), 2), {}, (2, 8, 12)),
    ("Flatten", (), {}, IMAGE),
    ("Flatten", (1, 2), {}, (2, 3, 4, 5, 2)),
    ("Unflatten", (1, (2, 3, 2)), {}, (5, 12)),
    ("UpsamplingNearest2d", (), {"scale_factor": 2}, IMAGE),
    ("UpsamplingBilinear2d", ((5, 13),), {}, IMAGE),
    ("Softmax2d", (), {}, IMAGE),
    ("Softmax2d", (), {}, ROW),
    ("FeatureAlphaDropout", (0.0,), {}, IMAGE),
    ("MaxUnpool2d", (2,), {}, IMAGE),
    ("MaxUnpool2d", ((2, 2),), {}, ROW),
    ("BatchNorm1d", (4,), {}, LINE),
    ("Conv1d", (4, 6, 3), {}, LINE),
    ("Conv3d", (4, 6, 2), {}, (2, 4, 3, 4, 5)),
]
WEIGHT, GRID = torch.rand(6, 4, 3, 3), torch.rand(2, 5, 3, 2) * 2 - 1
FUNCTIONS = [
    ("conv2d", (WEIGHT,), {"padding": 1}, IMAGE),
    ("conv_transpose2d", (WEIGHT.swapaxes(0, 1),), {"stride": 2}, IMAGE),
    ("max_pool2d", (2,), {}, IMAGE),
    ("max_pool2d", (2,), {}, ROW),
    ("avg_pool2d", (2,), {}, IMAGE),
    ("lp_pool2d", (2.0, 2), {}, IMAGE),
    ("adaptive_avg_pool2d", ((3, 2),), {}, IMAGE),
    ("adaptive_max_pool2d", ((3, 2),), {}, IMAGE),
    ("interpolate", (), {"size": (5, 4), "mode": "bicubic"}, IMAGE),
    ("interpolate", (), {"size": 5}, LINE),
    ("pixel_shuffle", (2,), {}, IMAGE),
    ("pixel_unshuffle", (2,), {}, (2, 4, 8, 6)),
    ("channel_shuffle", (2,), {}, IMAGE),
    ("group_norm", (2,), {}, IMAGE),
    ("instance_norm", (), {}, IMAGE),
    ("batch_norm", (None, None, None, None, True), {}, IMAGE),
    ("local_response_norm", (3,), {}, IMAGE),
    ("grid_sample", (GRID,), {"align_corners": False}, IMAGE),
    ("prelu", (torch.rand(4),), {}, IMAGE),
    ("unfold", (3,), {}, IMAGE),
    ("fold", ((4, 5), 2), {}, (2, 8, 12)),
    ("layer_norm", ((9,),), {}, LINE),
    ("max_unpool2d", (torch.arange(576).reshape(IMAGE) % 300, 2), {"output_size": (2, 4, 17, 18)}, IMAGE),
]


def data(shape, seed=0):
    return np.random.RandomState(seed).randn(*shape)


def turned(x):
    """An image of torch's as it is here."""
    return np.moveaxis(x, 1, -1) if x.ndim == 4 else x


def as_here(x):
    """Return the array of a tensor; integers of images are positions, which lie as their images do."""
    is_tensor = isinstance(x, torch.Tensor)
    return turned(x.numpy()) if is_tensor and not x.is_floating_point() else x.numpy() if is_tensor else x


def positions(name, shape):
    """The further input of MaxUnpool2d: where each number goes in the plane of its channel."""
    numbers = np.arange(np.prod(shape)).reshape(shape) % (4 * shape[-1] * shape[-2])
    return [numbers] if name == "MaxUnpool2d" else []


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("name", "args", "options", "shape"), LAYERS)
def test_a_layer_gives_torchs_outputs_gradients_and_state(name, args, options, shape):
    theirs = getattr(torch.nn, name)(*args, **options).double()
    for i, parameter in enumerate(theirs.parameters()):
        parameter.data += 0.1 * torch.tensor(data(parameter.shape, 7 + i))
    rngs = {"rngs": nnx.Rngs(0)} if name.startswith(("Conv", "Drop", "Feat")) else {}
    mine = parity.load_torch(
        jaxpar.to(getattr(ours, name)(*args, **options, **rngs), dtype=jnp.float64), theirs
    )
    x = data(shape)
    there = torch.tensor(x, requires_grad=True)
    more = positions(name, shape)
    y = theirs(there, *map(torch.tensor, more))
    weight = data(tuple(y.shape), 3)
    (y * torch.tensor(weight)).sum().backward()
    here = jnp.asarray(turned(x))
    found = jax.grad(lambda x: (nnx.clone(mine)(x, *map(turned, more)) * turned(weight)).sum())(here)
    assert_equal_numbers("dx", found, turned(there.grad.numpy()))
    assert_equal_numbers("y", mine(here, *map(turned, more)), turned(y.detach().numpy()))
    state = parity.to_torch(mine)
    for key, tensor in theirs.state_dict().items():
        assert_equal_numbers(key, state[key].numpy(), tensor.numpy())


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "args", "options", "shape"), FUNCTIONS)
def test_a_function_gives_torchs_outputs_and_gradients(name, args, options, shape):
    x = data(shape)
    there = torch.tensor(x, requires_grad=True)
    theirs = [x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in args]
    mine = [as_here(x) for x in theirs]
    call = getattr(torch, name, None) or getattr(torch.nn.functional, name)
    call = getattr(torch.nn.functional, name, call)
    y = call(there, *theirs, **options)
    weight = data(tuple(y.shape), 3)
    (y * torch.tensor(weight)).sum().backward()

    def ours(x):
        return getattr(F, name)(x, *mine, **options)

    assert_equal_numbers("y", ours(jnp.asarray(turned(x))), turned(y.detach().numpy()))
    found = jax.grad(lambda x: (ours(x) * turned(weight)).sum())(jnp.asarray(turned(x)))
    assert_equal_numbers("dx", found, turned(there.grad.numpy()))


def test_dropout2d_drops_whole_channels():
    y = np.asarray(ours.Dropout2d(0.5, rngs=nnx.Rngs(0))(jnp.ones((4, 5, 6, 8))))
    assert (y == y[:, :1, :1]).all()
    assert {*y[:, 0, 0].ravel()} == {0.0, 2.0}


@pytest.mark.parametrize("padding", [(4, -3, 0, 0), (-1, 3, 2, -2)])
def test_a_reflection_is_made_before_it_is_cut(padding):
    x = data((2, 3, 6, 7))
    expected = torch.nn.functional.pad(torch.tensor(x), padding, mode="reflect").numpy()
    y = jaxpar.nn.functional.pad(jnp.asarray(turned(x)), padding, mode="reflect")
    assert_equal_numbers("y", y, turned(expected))


def test_a_pixel_that_is_not_read_has_gradient_zero():
    _, pull = jax.vjp(lambda x: F.interpolate(x, size=(1, 2)), jnp.ones((1, 1, 4, 1)))
    (gradient,) = pull(jnp.array([jnp.inf, 1.0]).reshape(1, 1, 2, 1))
    assert gradient.ravel().tolist() == [float("inf"), 0.0, 1.0, 0.0]


def test_an_output_size_is_of_the_space_or_a_whole_shape_of_torch():
    layer = ours.ConvTranspose2d(4, 2, 3, stride=2, rngs=nnx.Rngs(0))
    x = jnp.ones((2, 5, 6, 4))
    assert layer(x, [12, 14]).shape == layer(x, (2, 2, 12, 14)).shape == (2, 12, 14, 2)


@pytest.mark.parametrize(
    ("last", "before"), [(ours, first), (F, first.functional)], ids=["layers", "functions"]
)
def test_it_has_what_channels_first_has(last, before):
    assert {*last.__all__} == {*before.__all__}


def test_what_it_has_of_images_is_compared_and_known_to_the_port():
    layers = {name for name in ours.__all__ if getattr(ours, name) is not getattr(first, name)} - {
        "functional"
    }
    functions = {name for name in F.__all__ if getattr(F, name) is not getattr(first.functional, name)}
    assert layers <= {name for name, *_ in LAYERS}
    assert functions <= {name for name, *_ in FUNCTIONS}
    assert layers == {name for name in tables.IMAGE_LAYERS if not name.startswith("_")}
    assert functions == {*tables.IMAGES}


def test_torchs_axes_are_seen():
    """Planted: channels_first computes of the same numbers what torch does not compute."""
    x = data((2, 4, 4, 4))
    expected = torch.nn.functional.max_pool2d(torch.tensor(x), 2).numpy()
    with pytest.raises(AssertionError):
        assert_equal_numbers("y", first.functional.max_pool2d(jnp.asarray(turned(x)), 2), turned(expected))
