"""port: operations that are rare in torch. The reference is torch, through parity.compare."""

import numpy as np
import optax
import pytest
import torch
from flax import nnx
from porting import operations

from jaxpar import nn, parity
from jaxpar.parity import recorder
from jaxpar.parity._port import as_used

PARTS = (operations.Weights, operations.Layers, operations.Translates, operations.NormsOfAxes)


@pytest.mark.sampled(7)
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*(spectral_norm|weight_norm|enable_nested_tensor).*")
@pytest.mark.parametrize("kind", PARTS, ids=lambda kind: kind.__name__)
def test_ports_are_the_same(kind):
    generator = torch.Generator().manual_seed(0)
    port = parity.port(kind, *(torch.randn(shape, generator=generator) for shape in kind.inputs))
    assert port.status == 0, f"{port.source}\n{port.failure}\n{port.comparison}"
    assert port.largest < 1e-10
    assert any("spectrum.weight" in note for note in port.notes) is (kind is operations.Layers)


@pytest.mark.parametrize("recorded", [False, True], ids=["compare", "against"])
def test_weights_that_are_frozen_on_both_sides_have_no_gradient(recorded, tmp_path):
    torchs = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    torchs[0].requires_grad_(False)
    rngs, layers = nnx.Rngs(0), nn.channels_first
    frozen = layers.freeze(layers.Linear(3, 4, rngs=rngs))
    flax = layers.Sequential(frozen, layers.Linear(4, 2, rngs=rngs))
    x, sgd = np.random.RandomState(0).randn(5, 3), lambda parameters: torch.optim.SGD(parameters, 0.1)
    if recorded:
        trace = recorder.record(tmp_path / "trace", torchs, x, steps=3, optimizer=sgd)
        assert parity.against(trace, flax, optimizer=optax.sgd(0.1)).same
    else:
        assert parity.compare(torchs, flax, x, steps=3, optimizer=(sgd, optax.sgd(0.1))).same


@pytest.mark.full
def test_lists_of_a_module_are_joined_with_others():
    port = parity.port(operations.JoinsSizes, torch.randn(operations.JoinsSizes.inputs[0]))
    assert (port.status, port.failure) == (0, "")
    assert "reshape([len(x), *size, 1])" in port.source
    assert "reshape([*self.size, len(x)])" in port.source


@pytest.mark.full
def test_a_type_that_is_an_argument_may_be_none():
    x = torch.randn(operations.CastsToAnArgument.inputs[0])
    port = parity.port(operations.CastsToAnArgument, x)
    assert (port.status, port.failure) == (0, "")
    assert port.module(x.numpy(), "float16").dtype == np.float16


@pytest.mark.full
def test_a_class_in_a_class_is_written_there():
    port = parity.port(operations.ClassesInside, torch.randn(operations.ClassesInside.inputs[0]))
    assert (port.status, port.failure) == (0, "")
    assert "    class Block(nnx.Module):\n        def __init__(self, width, *, rngs" in port.source
    assert "        class Block(nnx.Module):\n            def __call__" in port.source
    assert "self.Block(4, rngs=rngs)" in port.source


RECURRENT = {"LSTM": {"proj_size": 2}, "GRU": {"bidirectional": True}, "RNN": {"batch_first": True}}


@pytest.mark.sampled(3)
@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*oneDNN.*")
@pytest.mark.parametrize("kind", RECURRENT)
def test_dropout_between_recurrent_layers_is_compared(kind):
    options = {"dropout": 0.4, **RECURRENT[kind]}
    x = np.random.RandomState(0).randn(3, 5, 4)
    for rate, same in ((0.4, True), (0.6, False)):
        flax = getattr(nn, kind)(4, 3, 3, **{**options, "dropout": rate}, rngs=nnx.Rngs(0))
        compared = parity.compare(getattr(torch.nn, kind)(4, 3, 3, **options), flax, x, search=None)
        assert compared.same is same


def test_dropout_on_packed_sequences_is_refused():
    class Packed(torch.nn.GRU):
        def forward(self, x):
            return super().forward(torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 5])))[1]

    with pytest.raises(NotImplementedError, match="packed sequences; compare in evaluation mode"):
        parity.compare(
            Packed(4, 3, 2, dropout=0.5), nn.GRU(4, 3, 2, dropout=0.5, rngs=nnx.Rngs(0)), np.ones((5, 2, 4))
        )


@pytest.mark.full
def test_assertions_of_identity_are_left_out_and_names_may_be_computed():
    port = parity.port(operations.Asserts, torch.randn(operations.Asserts.inputs[0]))
    assert (port.status, port.failure, port.holes) == (0, "", ())
    assert "assert" not in port.source
    assert '("part_1.linear.weight", "mul_", 0.5)' in port.source
    assert sum("a compiled program has no identity of arrays" in note for note in port.notes) == 2


@pytest.mark.full
def test_a_variant_without_digits_in_torch_is_left_out_with_a_note():
    port = parity.port(operations.Normalized, torch.randn(operations.Normalized.inputs[0]))
    assert (port.status, port.failure) == (0, "")
    notes = [note for note in port.notes if note.startswith("not compared with zeros in the inputs: ")]
    assert len(notes) == 1


def test_an_array_that_a_class_of_another_file_reads_is_a_hole():
    port = parity.port(operations.ReadsShown, torch.randn(operations.ReadsShown.inputs[0]))
    assert ["self.scores = scores" in hole for hole in port.holes] == [True]


@pytest.mark.full
def test_losses_as_layers_are_functions():
    port = parity.port(operations.Losses, torch.randn(operations.Losses.inputs[0]))
    assert (port.status, port.failure, port.holes) == (0, "", ())
    assert 'partial(F.huber_loss, reduction="sum", delta=0.7)' in port.source


@pytest.mark.full
@pytest.mark.parametrize("channels_last", [False, True])
def test_layers_of_images_that_few_use_are_the_same(channels_last):
    image = torch.randn(operations.Unpools.inputs[0])
    port = parity.port(operations.Unpools, image, channels_last=channels_last)
    assert (port.status, port.failure, port.holes) == (0, "", ())
    assert port.largest < 1e-10


def test_a_tensor_that_is_passed_twice_stays_one_object():
    kind = operations.AsksForOneTensor
    x = torch.randn(kind.inputs[0])
    arguments = dict.fromkeys(("query", "key", "value"), x)
    for port in (parity.port(kind, *arguments.values()), parity.port(kind, **arguments)):
        assert (port.status, port.failure, port.differences) == (0, "", ())


def test_norms_of_constants_in_float32_have_the_digits_of_torchs_roundings():
    torchs, ours = np.ones(3, np.float32), np.full(3, 1.0018, np.float32)
    wide = np.ones(3)
    assert as_used._difference(ours, torchs, wide, 1e-4) == ""
    assert "0.0018 off" in as_used._difference(ours, torchs, wide, 0.0)
    assert "0.0018 off" in as_used._difference(ours, torchs, wide, 1e-5)
    assert "0.0018 off" in as_used._difference(ours, torchs, wide, 2e-3)  # which is extrapolated
    assert as_used._difference(ours, torchs, wide, 0.0, 2e-3) == ""  # which torch was measured to err
    assert "0.0018 off" in as_used._difference(ours, torchs, wide, 1.0)  # a tie that takes another branch


def test_a_type_that_the_code_names_hides_no_rounding():
    class Positions(torch.nn.Module):
        def forward(self, x):
            return (x.float() * 1e6 / 3).sin()

    x = torch.linspace(0, 3, 7)
    single = {"": Positions()(x).numpy()}
    wide = Positions()(x.double()).numpy()
    assert as_used._difference(single[""] + np.float32(1e-3), single[""], wide, 0.0)
    rounding = as_used._rounding(Positions(), ((x,), {}), single)
    assert 1e-2 < rounding < 1


@pytest.mark.full
def test_what_a_registry_chose_is_the_layer_itself():
    port = parity.port(operations.FromRegistry, torch.randn(operations.FromRegistry.inputs[0]))
    assert (port.status, port.failure, port.holes) == (0, "", ())
    assert "class Registry" not in port.source
    assert 'chosen = {("conv", 2): nn.Conv2d, ("norm", 2): nn.BatchNorm2d}[kind, axes]' in port.source


def test_a_loss_with_weights_is_a_hole():
    port = parity.port(operations.WeightedLoss, torch.randn(operations.WeightedLoss.inputs[0]))
    assert ["pass them to F.cross_entropy in the call" in hole for hole in port.holes] == [True]
