"""bisect names what loops that accumulate, or of several processes, do differently; rows of images."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from jaxpar import parity

STEPS, TURNS = 60, 2


def cosine(period):
    return lambda update: 0.5 * (1 + math.cos(math.pi * update / period))


def tapped(
    folder, *, with_optimizer=True, period=30, subtracted=0.0, bias=1.0, kind=torch.optim.AdamW, **settings
):
    """Tap float32 updates of every second step.

    `subtracted` is how much of the weights each update takes, `bias` a factor of the bias's gradients.
    """
    net = torch.nn.Linear(4, 3)
    net.load_state_dict({"weight": torch.linspace(-1, 1, 12).reshape(3, 4), "bias": torch.ones(3) / 7})
    optimizer = kind(net.parameters(), **({"lr": 0.01, "weight_decay": 0.0} | settings))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, cosine(period))
    random = np.random.default_rng(0)
    with parity.Tap(folder, start=net) as tap:
        for step in range(STEPS):
            for p in net.parameters():
                gradient = torch.from_numpy(random.standard_normal(p.shape).astype(np.float32)) / TURNS
                gradient *= bias if p is net.bias else 1
                p.grad = gradient if step % TURNS == 0 else p.grad + gradient
            rate = optimizer.param_groups[0]["lr"]
            if step % TURNS == TURNS - 1:
                optimizer.step()
                scheduler.step()
                with torch.no_grad():
                    net.weight.mul_(1 - subtracted)
                    net.bias.mul_(1 - subtracted)
            arrays = {"gradients": net, "parameters": net}
            tap(step, rate=rate, optimizer=optimizer if with_optimizer else None, **arrays)
    return folder


def without_decay_of_biases(parameters, weight_decay, lr):
    weight, bias = parameters
    groups = [{"params": [weight], "weight_decay": weight_decay}, {"params": [bias]}]
    return torch.optim.SGD(groups, lr=lr, momentum=0.8)


CASES = {
    "two settings of an optimizer that is not tapped": (
        {"kind": without_decay_of_biases, "weight_decay": 0.1, "with_optimizer": False},
        {"kind": without_decay_of_biases},
        "weight_decay is 0.1 and 0 (run B acts as with 0)",
    ),
    "two settings of an optimizer beside a gradient of rounding": (
        {"kind": without_decay_of_biases, "weight_decay": 0.1, "with_optimizer": False, "bias": 1e-20},
        {"kind": without_decay_of_biases, "bias": 1e-20},
        "weight_decay is 0.1 and 0 (run B acts as with 0)",
    ),
    "another average of squares": (
        {"betas": (0.9, 0.99)},
        {"betas": (0.9, 0.999)},
        "betas is (0.9, 0.99) (run B acts as with (0.9, 0.999))",
    ),
    "another epsilon": ({}, {"eps": 1e-3}, "eps is 1e-08 (run B acts as with 0.001)"),
    "a small decay": ({}, {"weight_decay": 0.01}, "weight_decay is 0 (run B acts as with 0.01)"),
    "a slower cosine": (
        {},
        {"period": 60},
        "a cosine over 30 updates to 0; run B's falls along a cosine over 60 updates to 0",
    ),
    "a decay at any rate": (
        {"weight_decay": 0.1},
        {"weight_decay": 0.0, "subtracted": 1e-3},
        "decoupled decay is multiplied by the rate (run B subtracts 0.001",
    ),
}


@pytest.mark.parametrize("name", CASES, ids=lambda name: name.replace(" ", "_"))
def test_a_difference_between_updates_is_named(name, tmp_path):
    one, other, text = CASES[name]
    result = parity.bisect(
        tapped(tmp_path / "a", **one), tapped(tmp_path / "b", with_optimizer=False, **other)
    )
    assert text in " or ".join(result.causes), str(result)
    assert result.step is not None
    assert result.step >= TURNS - 1  # not before the first update


def test_the_same_is_the_same(tmp_path):
    result = parity.bisect(tapped(tmp_path / "a"), tapped(tmp_path / "b", with_optimizer=False))
    assert result.same, str(result)


# ------------------------------------------------------------------------------------ rows of sequences


def sequences(folder, labels_of):
    """Tap tokens [times, rows] with one label for each token, as language models divide a text."""
    text = np.random.default_rng(0).integers(0, 90, (STEPS * 5 + 1, 8))
    with parity.Tap(folder) as tap:
        for step in range(STEPS):
            tokens, after = text[5 * step : 5 * step + 5], text[5 * step + 1 : 5 * step + 6]
            tap(step, batch=(tokens, labels_of(tokens, after).reshape(-1)), loss=1.0 + step)
    return folder


def test_labels_may_have_rows_of_their_own(tmp_path):
    for run in "ab":
        sequences(tmp_path / run, lambda tokens, after: after)
    assert parity.bisect(tmp_path / "a", tmp_path / "b").same


def test_labels_of_a_sequence_are_counted(tmp_path):
    sequences(tmp_path / "a", lambda tokens, after: after)
    sequences(tmp_path / "b", lambda tokens, after: tokens)
    result = parity.bisect(tmp_path / "a", tmp_path / "b")
    assert result.part == "batch"
    assert "of 40 labels differ" in result.causes[0], str(result)


def images(folder, changed):
    """Tap images; a run in JAX has its channels last."""
    random = np.random.default_rng(0)
    with parity.Tap(folder, full={0}) as tap:
        for step in range(STEPS):
            tap(step, batch=changed(random.standard_normal((16, 3, 4, 5))), loss=1.0 + step)
    return folder


def test_another_normalisation_is_named_in_another_layout(tmp_path):
    images(tmp_path / "a", lambda x: x)
    images(tmp_path / "b", lambda x: np.moveaxis(2 * x - 0.5, 1, 3))
    (cause,) = parity.bisect(tmp_path / "a", tmp_path / "b").causes
    assert "2 times run A's -0.5: scaled or normalised otherwise" in cause


# -------------------------------------------------------------------------------------- two processes


def processes(folder, *, factor=1.0, received=lambda mean: mean / np.linalg.norm(mean), sent=lambda x: x):
    """Tap two processes, whose gradients are the mean of theirs; it is clipped."""
    for rank in range(2):
        random = np.random.default_rng(0)
        with parity.Tap(folder, rank=rank, world=2) as tap:
            for step in range(12):
                tokens = random.integers(0, 90, (2, 8, 12))
                mean = received(sum(sent(1 + random.random((6, 5))) for _ in range(2)) / 2)
                loss = factor * (1.0 + step + rank)
                tap(step, batch=tokens[rank], loss=loss, gradients={"w": mean})
    return folder


def test_a_sum_over_the_rows_of_a_process_is_named(tmp_path):
    result = parity.bisect(processes(tmp_path / "a"), processes(tmp_path / "b", factor=96.0))
    assert "over 96 elements of (16, 12), those of one process" in " ".join(result.causes), str(result)


def test_a_mean_of_rounded_gradients_is_no_other_type(tmp_path):
    def bfloat16(x):
        return np.round(x * 128) / 128

    one = processes(tmp_path / "a", received=lambda mean: mean)
    other = processes(tmp_path / "b", received=lambda mean: mean, sent=bfloat16)
    text = "gradients are rounded to bfloat16 before a sum over micro batches or processes in run B: w"
    assert text in parity.bisect(one, other).causes


def test_a_factor_that_is_a_number_of_elements_may_be_a_loss_scale(tmp_path):
    for name, factor in (("a", 1.0), ("b", 1024.0)):
        random = np.random.default_rng(0)
        with parity.Tap(tmp_path / name) as tap:
            for step in range(3):
                gradients = {"w": factor * random.standard_normal((6, 5))}
                tap(step, batch=random.standard_normal((16, 64)), loss=1.0, gradients=gradients)
    (cause,) = parity.bisect(tmp_path / "a", tmp_path / "b").causes
    assert cause.endswith("over 1024 elements of (16, 64); or a loss scale"), cause


@pytest.mark.parametrize(
    ("first", "cause"), [(0, "repeats the order of its first epoch"), (9, "another shuffle")]
)
def test_epochs_that_repeat_within_accumulated_batches_are_named(first, cause, tmp_path):
    data = np.random.default_rng(0).standard_normal((12, 3))
    for name, seeds in (("a", range(8)), ("b", [first] * 8)):
        orders = [np.random.default_rng(seed).permutation(12) for seed in seeds]
        stream = np.concatenate(orders).reshape(-1, 2, 4)  # two micro batches a step, the last one first
        with parity.Tap(tmp_path / name) as tap:
            for step, micro_batches in enumerate(stream):
                tap(step, batch=data[micro_batches[::-1].reshape(-1)], loss=1.0)
    (named,) = parity.bisect(tmp_path / "a", tmp_path / "b").causes
    assert cause in named
