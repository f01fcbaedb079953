"""The rulebook's rows of the layers in these tables: torch's classes, and there and back."""

from __future__ import annotations

import numpy as np
import pytest
from flax import nnx

from jaxpar._rulebook import rule_for

torch = pytest.importorskip("torch")
from against_torch.cases import activations, embedding, parametrizations, pools, resize  # noqa: E402
from against_torch.layers import jaxpar_call, torch_call  # noqa: E402

LAYERS = {
    (case.torch, case.jaxpar): case
    for book in (activations, embedding, parametrizations, pools, resize)
    for case in book.CASES
    if not case.torch.startswith("lambda")
}


@pytest.mark.full
@pytest.mark.parametrize("texts", LAYERS, ids=str)
def test_there_and_back(texts):
    case = LAYERS[texts]
    theirs, ours = torch_call(case.torch), jaxpar_call(case.jaxpar or case.torch)
    rule = rule_for(ours)
    assert type(theirs).__name__ in rule.kinds
    tensors = {name: x.numpy() for name, x in theirs.state_dict().items()}
    leaves = rule.to_flax(tensors)
    state = nnx.to_flat_state(nnx.state(ours, nnx.Not(nnx.RngState)))
    assert {k: v.shape for k, v in leaves.items()} == {".".join(map(str, p)): v[...].shape for p, v in state}
    back = rule.to_torch(leaves)
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(back[name], tensor, err_msg=name)


def test_every_shape_tells_its_axes():
    """A square kernel's axes are found by their place, not by their size."""
    for dim, ours in ((0, -1), (1, -2), (2, 0), (3, 1)):
        conv = "torch.nn.Conv2d(3, 3, (3, 3)).double()"
        theirs = torch_call(f"utils.parametrizations.spectral_norm({conv}, dim={dim})")
        layer = jaxpar_call(f"SpectralNorm(Conv(3, 3, (3, 3)), dim={ours})")
        tensors = {name: x.numpy() for name, x in theirs.state_dict().items()}
        leaves = rule_for(layer).to_flax(tensors)
        kernel, v = leaves["layer.kernel"], leaves["v"]
        u = np.tensordot(np.moveaxis(kernel, ours, 0), v, 3)
        np.testing.assert_allclose(u @ leaves["u"], np.linalg.norm(u), rtol=0.05)
        matrix = np.moveaxis(tensors["parametrizations.weight.original"], dim, 0).reshape(3, -1)
        np.testing.assert_allclose(u, matrix @ tensors["parametrizations.weight.0._v"], rtol=1e-12)
