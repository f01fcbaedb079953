"""bisect sees a clipping that happens after gradients are tapped, and blames what truly differs."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest
import torch

from jaxpar import optim, parity

SHAPES = {"w": (5, 4), "b": (4,)}
STEPS, RATE = 12, 0.05

CLIPS = {
    "norm": (optim.clip_grad_norm, torch.nn.utils.clip_grad_norm_, 4.0),
    "value": (optax.clip, torch.nn.utils.clip_grad_value_, 1.0),
}
OPTIMIZERS = {
    "sgd": (optax.sgd, lambda p, rate, **k: torch.optim.SGD(p, rate, **k), {}),
    "momentum": (optax.sgd, lambda p, rate, **k: torch.optim.SGD(p, rate, **k), {"momentum": 0.9}),
    "adam": (optax.adam, lambda p, rate, **k: torch.optim.Adam(p, rate, **k), {}),
}


def batches():
    """Yield a batch, a loss, and gradients, of which some are beyond the limits."""
    random = np.random.default_rng(3)
    for step in range(STEPS):
        scale = (1.0, 0.5, 3.0)[step % 3]
        yield (
            random.standard_normal((6, 5)),
            1.0 + step,
            {name: scale * random.standard_normal(shape) for name, shape in SHAPES.items()},
        )


def start():
    random = np.random.default_rng(5)
    return {name: random.standard_normal(shape) for name, shape in SHAPES.items()}


def tap_torch(folder, optimizer, form, dtype=torch.float64, schedule=None, nudge=0.0):
    """A loop of torch that taps after it clips; the rate of a `schedule` is not tapped."""
    module = torch.nn.Module()
    for name, x in start().items():
        module.register_parameter(name, torch.nn.Parameter(torch.tensor(x * (1 + nudge), dtype=dtype)))
    _, make, settings = OPTIMIZERS[optimizer]
    _, clip, limit = CLIPS[form]
    update = make(module.parameters(), RATE, **settings)
    with parity.Tap(folder, start=module) as tap:
        for step, (x, loss, gradients) in enumerate(batches()):
            for name, p in module.named_parameters():
                p.grad = torch.tensor(gradients[name], dtype=dtype)
            clip(module.parameters(), limit)
            rates = {"rate": RATE}
            if schedule is not None:
                update.param_groups[0]["lr"] = schedule(step)
                rates = {}
            update.step()
            tap(step, batch=x, loss=loss, gradients=module, parameters=module, **rates)


def tap_jax(folder, optimizer, form, limit, *, rate=RATE, is_rate_tapped=True, x64=True):
    """A loop of JAX whose chain of optax clips at `limit`, after gradients are tapped; None does not clip."""
    with jax.enable_x64(x64):
        make, _, settings = OPTIMIZERS[optimizer]
        chain = optax.chain(*[CLIPS[form][0](limit)] if limit else [], make(rate, **settings))
        weights = jax.tree.map(jax.numpy.asarray, start())
        state = chain.init(weights)
        with parity.Tap(folder, start=weights) as tap:
            for step, (x, loss, gradients) in enumerate(batches()):
                gradients = jax.tree.map(jax.numpy.asarray, gradients)
                updates, state = chain.update(gradients, state, weights)
                weights = optax.apply_updates(weights, updates)
                rates = {"rate": rate} if is_rate_tapped else {}
                tap(step, batch=x, loss=loss, gradients=gradients, parameters=weights, **rates)


@pytest.mark.parametrize("form", CLIPS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_chain_that_clips_as_torch_does_is_the_same(optimizer, form, tmp_path):
    tap_torch(tmp_path / "a", optimizer, form)
    tap_jax(tmp_path / "b", optimizer, form, CLIPS[form][2])
    result = parity.bisect(tmp_path / "a", tmp_path / "b")
    assert result.same, str(result)
    assert any("before it clips" in note for note in result.notes), str(result)


def test_optaxs_norm_lacks_torchs_1e_6(tmp_path, monkeypatch):
    monkeypatch.setitem(CLIPS, "norm", (optax.clip_by_global_norm, *CLIPS["norm"][1:]))
    tap_torch(tmp_path / "a", "momentum", "norm")
    tap_jax(tmp_path / "b", "momentum", "norm", 4.0)
    result = parity.bisect(tmp_path / "a", tmp_path / "b")
    assert result.causes == ("both clip the global norm at 4; one by the norm + 1e-6, one by the norm alone",)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("form", CLIPS)
def test_float32(optimizer, form, tmp_path):
    """A rate twice as large is named in float32, too, and the clipping is not."""
    tap_torch(tmp_path / "a", optimizer, form, torch.float32)
    for rate in (RATE, 2 * RATE):
        limit = CLIPS[form][2]
        tap_jax(tmp_path / f"b{rate}", optimizer, form, limit, rate=rate, is_rate_tapped=False, x64=False)
        result = parity.bisect(tmp_path / "a", tmp_path / f"b{rate}")
        assert result.same == (rate == RATE), str(result)
        assert any("before it clips" in note for note in result.notes), str(result)
        assert result.same or "rate" in result.causes[0], str(result)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", CLIPS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("is_rate_tapped", [True, False])
def test_a_chain_that_clips_as_torch_does_is_not_blamed_for_a_rate(optimizer, form, is_rate_tapped, tmp_path):
    tap_torch(tmp_path / "a", optimizer, form)
    tap_jax(tmp_path / "b", optimizer, form, CLIPS[form][2], rate=2 * RATE, is_rate_tapped=is_rate_tapped)
    result = parity.bisect(tmp_path / "a", tmp_path / "b")
    assert not result.same
    assert "clip" not in " ".join(result.causes), str(result)
    assert "rate" in " ".join(result.causes), str(result)


@pytest.mark.parametrize("form", CLIPS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_chain_without_a_clip_is_blamed(optimizer, form, tmp_path):
    tap_torch(tmp_path / "a", optimizer, form)
    tap_jax(tmp_path / "b", optimizer, form, None)
    result = parity.bisect(tmp_path / "a", tmp_path / "b")
    assert result.part == "gradients"
    assert result.causes[0].startswith("run A clips"), str(result)
    assert result.causes[0].endswith("run B does not"), str(result)


def test_unknown_rates_follow_the_other_runs_schedule(tmp_path):
    tap_torch(tmp_path / "a", "sgd", "norm", schedule=lambda step: RATE / (1 + step))
    tap_jax(tmp_path / "b", "sgd", "norm", 4.0, rate=lambda step: 2 * RATE / (1 + step), is_rate_tapped=False)
    result = parity.bisect(tmp_path / "a", tmp_path / "b")
    assert result.part == "parameters", str(result)
    assert "rate" in result.causes[0], str(result)


def test_another_optimizer_is_searched_for(tmp_path):
    """Run B is Adam that clips after its gradients are tapped, and run A is SGD."""
    tap_torch(tmp_path / "a", "sgd", "norm")
    tap_jax(tmp_path / "b", "adam", "norm", 4.0)
    result = parity.bisect(tmp_path / "a", tmp_path / "b")
    assert any("before it clips" in note for note in result.notes), str(result)
    assert result.part == "parameters", str(result)
    assert "clip" not in " ".join(result.causes), str(result)


def test_the_nudged_run_is_clipped_too(tmp_path):
    tap_jax(tmp_path / "a", "momentum", "norm", 4.0)
    tap_jax(tmp_path / "nudged", "momentum", "norm", 4.0)
    tap_torch(tmp_path / "b", "momentum", "norm", nudge=2e-16)
    result = parity.bisect(tmp_path / "a", tmp_path / "b", nudged=tmp_path / "nudged")
    assert result.same, str(result)
    curve = result.curves["gradients"]
    assert max(curve.allowed) < 1e-9, curve


def test_updates_without_an_explanation_prove_nothing(tmp_path):
    tap_torch(tmp_path / "a", "sgd", "norm")
    with parity.Tap(tmp_path / "b", start=start()) as tap:
        weights = start()
        for step, (x, loss, gradients) in enumerate(batches()):
            weights = {name: w - 0.1 * np.tanh(gradients[name]) ** 3 for name, w in weights.items()}
            tap(step, batch=x, loss=loss, gradients=gradients, parameters=weights)
    result = parity.bisect(tmp_path / "a", tmp_path / "b")
    assert "does not, or clips after its gradients are tapped" in result.causes[0], str(result)
