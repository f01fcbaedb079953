"""port with `channels_last=True`: files written for images [N, H, W, C]. The reference is torch."""

import importlib
import inspect

import numpy as np
import pytest
import torch
from porting import images, modules
from torch import nn

from jaxpar import errors, parity
from jaxpar.parity._port.images import order, plan
from jaxpar.parity._port.images import tables as axis_tables

WRITTEN = {
    images.Along: [
        "a = jnp.concatenate([y, -y], axis=-1)",
        "b, c = F.chunk(a, 2, -1)",
        "d = nnx.softmax(b, -1) + b.mean((1, 2), keepdims=True)",
        "e = c.sum(-1), c.mean((1, 2)), c.max(-1), jnp.argmax(c, 2, keepdims=True).sum((0, -1, 1, 2))",
        "f = jnp.moveaxis(d, -1, 1).sum(3)",
        "g = F.normalize(d, dim=-1) * d.var((1, 2), ddof=1, keepdims=True) + d.cumsum(2)",
        "h = jnp.roll(jnp.flip(d, (1, 2)), 1, -1).mean()",
    ],
    images.Shapes: [
        "B, H, W, C = y.shape",
        "_, h, w, _ = y.shape",
        'z = F.interpolate(y[:, ::2, ::2], size=y.shape[1:3], mode="nearest")',
        "z = F.pad(z, (0, 0, 1, 0, 0, 1))[:, 1:, :-1]",
        "part = z[..., : y.shape[-1] // 2]",
        "rows = jnp.moveaxis(y, -1, 1).reshape(B, C, H * W)",
        "first = z[..., 0], jnp.moveaxis(z, -1, 1)[:, :, 0]",
    ],
    images.Beside: [
        "self.conv(x) * jnp.moveaxis(self.scale[...], 0, -1) + jnp.moveaxis(self.place[...], 1, -1)",
        "gate = jnp.moveaxis(jnp.expand_dims(jnp.expand_dims(y.mean((1, 2)), -1), -1), 1, -1)",
        "y += gate",
        "y = F.conv2d(y, self.weight[...], padding=1)",
        "y = jnp.moveaxis(self.columns(jnp.moveaxis(y, -1, 1)), 1, -1)",
    ],
    images.Shuffle: [
        "n, h, w, c = x.shape",
        "x = jnp.moveaxis(x, -1, 1).reshape(n, 2, c // 2, h, w)",
        "x = jnp.moveaxis(x.swapaxes(1, 2).reshape(n, c, h, w), 1, -1)",
        "q = jnp.moveaxis(self.heads(x), -1, 1).reshape(n, 2, c // 2, h * w).swapaxes(2, 3)",
        "scores = nnx.softmax(q @ q.swapaxes(-2, -1), -1)",
        "grown = F.pixel_shuffle(x, 2)",
    ],
    images.Layers: [
        "y = jnp.concatenate(features, axis=-1)",
        "rows = self.head(x)",
        'return {"image": back, "up": up, "rows": rows, "all": y}',
    ],
    images.Derived: [
        "return super().__call__(F.avg_pool2d(x, 2))",
        "return x * mask.astype(x.dtype), x.shape[-1]",
        "y, count = masked(self.own(x), mask > 0)",
        "y = jnp.where(~(mask > 0), 0.0, y)",
        "rows = [F.flatten(jnp.moveaxis(each, -1, 1), 1) for each in (y, x)]",
    ],
    images.Many: ["x = x + 0.5"],
}
"""Lines of ports. What is not named in `port.notes` has no torch's axes."""
TURNED = {
    images.Written: "x[:, 0] = 0.0: it changes a part of an image",
    images.Normed: "LayerNorm in a container is given an image",
    images.Sometimes: "x: not always an image",
    images.Stacked: "found: a list of images",
    images.Mixed: "Conv2d and Linear in one line",
    images.Numbers: "an array with four axes that comes or goes and is not of floats",
}
"""Modules whose images are turned once, and why."""


def example(kind):
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(shape, generator=generator) for shape in kind.inputs]


@pytest.fixture
def unproven(monkeypatch):
    monkeypatch.setattr(importlib.import_module("jaxpar.parity._port.port"), "prove", lambda *_: [])


def test_every_case_is_in_a_table():
    kinds = {kind for kind in vars(images).values() if inspect.isclass(kind) and hasattr(kind, "inputs")}
    assert kinds == {*WRITTEN, *TURNED, images.Row}


@pytest.mark.full
@pytest.mark.parametrize("kind", WRITTEN, ids=lambda kind: kind.__name__)
def test_lines_are_written_for_images(kind, unproven):
    port = parity.port(kind, *example(kind), channels_last=True)
    assert "images are [N, H, W, C]" in port.notes
    for line in WRITTEN[kind]:
        assert line in port.source
    turned = [note for note in port.notes if note.endswith("in torch's axes")]
    assert bool(turned) == any("-1, 1)" in line for line in WRITTEN[kind])


@pytest.mark.full
@pytest.mark.parametrize("kind", TURNED, ids=lambda kind: kind.__name__)
def test_images_are_turned_once_where_a_line_cannot_be_written(kind, unproven):
    port = parity.port(kind, *example(kind), channels_last=True)
    assert "x = jnp.moveaxis(x, -1, 1)  # from [N, H, W, C]" in port.source
    assert any("are turned once" in note and TURNED[kind] in note for note in port.notes), port.notes


@pytest.mark.slow
@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    "kind",
    # The lines of Many stand above; XLA takes 40 s for each of its programs of thousands of sums.
    [*(kind for kind in WRITTEN if kind is not images.Many), *TURNED, modules.CNN, modules.Stages],
    ids=lambda kind: kind.__name__,
)
def test_both_are_the_same(kind, tmp_path):
    path = tmp_path / "port.py"
    port = parity.port(kind, *example(kind), out=path, channels_last=True, record=True)
    assert port.status == 0, f"{port.source}\n{port.failure}\n{port.comparison}"
    assert port.largest < 1e-10
    first = np.moveaxis(example(kind)[0].numpy(), 1, -1)
    rest = [np.moveaxis(each.numpy(), 1, -1) for each in example(kind)[1:]]
    port.module(first, *rest)
    layers = "channels_last" if kind not in TURNED else "channels_first"
    assert f"from jaxpar.nn import {layers} as nn" in port.source or "nn." not in port.source


@pytest.mark.slow
def test_the_test_beside_a_file_has_the_layers_of_images(tmp_path):
    def make():
        return modules.CNN(norm_layer=nn.InstanceNorm2d)

    given = torch.rand(2, 3, 8, 8)
    port = parity.port(make, given, out=tmp_path / "net.py", channels_last=True, record=True)
    assert (port.status, port.failure) == (0, "")
    assert "norm_layer=nn.InstanceNorm2d" in port.build
    assert "from jaxpar.nn import channels_last as nn" in (tmp_path / "test_net.py").read_text()


FAULTS = {
    "torch's axes": (order, "LAST", {0: 0, 1: 1, 2: 2, 3: 3}, images.Along),
    "height and width": (order, "LAST", {0: 0, 1: -1, 2: 2, 3: 1}, images.Along),
    "any order": (order, "same_order", lambda kept: True, images.Along),
    "another order of parts": (order, "ORDER", (0, 3, 2, 1), images.Shapes),
    "turned the other way": (plan, "TO_TORCH", (1, -1), images.Shapes),
    "never turned back": (plan, "FROM_TORCH", (0, 0), images.Shuffle),
    "beside the width": (plan, "LIFTED", (0, 0), images.Beside),
    "a view as if it kept the axes": (
        axis_tables,
        "ELEMENTWISE",
        {*axis_tables.ELEMENTWISE, "reshape", "view", "transpose"},
        images.Shuffle,
    ),
}


@pytest.mark.full
@pytest.mark.sampled(4)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_order_is_seen_by_the_proof(fault, monkeypatch):
    where, name, planted, kind = FAULTS[fault]
    monkeypatch.setattr(where, name, planted)
    port = parity.port(kind, *example(kind), channels_last=True)
    assert port.status in (1, 3)
    assert "NOT THE SAME" in port.source or "Not proven" in port.source


@pytest.mark.full
def test_an_image_by_keyword_has_torchs_axes():
    image = torch.rand(2, 3, 4, 4)
    port = parity.port(images.Named, image, mask=image + 1, channels_last=True)
    assert (port.status, port.failure) == (0, "")
    assert any("because of an image is a keyword argument" in note for note in port.notes)


@pytest.mark.full
def test_images_in_a_list_that_cannot_be_turned_are_refused():
    with pytest.raises(errors.PortError, match=r"an image is in a list; .* because of .*: a list of images"):
        parity.port(images.Listed, [torch.rand(2, 3, 4, 4)] * 2, channels_last=True)


REFUSED = {
    modules.MLP: "no input has four axes",
    images.Row: "no forward of its own.* because of LayerNorm in a container is given an image",
}


@pytest.mark.full
@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_it_is_refused_where_nothing_can_be_turned(kind):
    given = example(kind) if kind is images.Row else [torch.ones(3, 6)]
    with pytest.raises(errors.PortError, match=REFUSED[kind]):
        parity.port(kind, *given, channels_last=True)
