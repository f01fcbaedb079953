"""bisect names what other loops do: settings that change, parts frozen midway, smoothed labels, averages."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from jaxpar import parity
from jaxpar.parity._runs.digests import sample_indices

STEPS = 20
SHAPES = {"w": (3, 4), "b": (4,)}


def gradients():
    random = np.random.default_rng(1)
    return [{name: random.standard_normal(shape) for name, shape in SHAPES.items()} for _ in range(STEPS)]


def start():
    random = np.random.default_rng(0)
    return {name: random.standard_normal(shape) for name, shape in SHAPES.items()}


def tapped_torch(folder, build, absent=lambda step: False, average=None):
    model = torch.nn.Module()
    for name, x in start().items():
        model.register_parameter(name, torch.nn.Parameter(torch.from_numpy(x)))
    optimizer, *schedulers = built if isinstance(built := build(model.parameters()), tuple) else (built,)
    averages = {name: p.detach().clone() for name, p in model.named_parameters()}
    with parity.Tap(folder, start=model) as tap:
        for step, arrays in enumerate(gradients()):
            for name, p in model.named_parameters():
                p.grad = None if absent(step) and name == "b" else torch.from_numpy(arrays[name].copy())
            optimizer.step()
            extra = None
            if average:
                for name, p in model.named_parameters():
                    averages[name].lerp_(p.detach(), 1 - average)
                extra = {"ema": averages}
            tap(step, gradients=model, parameters=model, optimizer=optimizer, extra=extra)
            for scheduler in schedulers:
                scheduler.step()


def tapped_numpy(folder, momentum=0.0, rate=0.1, average=None, until=STEPS):
    """Tap SGD; from step `until` on, the array b has no gradient and stays as it is."""
    weights, buffers, averages = start(), dict.fromkeys(SHAPES, 0.0), start()
    with parity.Tap(folder, start=weights) as tap:
        for step, arrays in enumerate(gradients()):
            present = {name: g for name, g in arrays.items() if name != "b" or step < until}
            buffers |= {name: momentum * buffers[name] + g for name, g in present.items()}
            weights = weights | {name: weights[name] - rate * buffers[name] for name in present}
            averages = {name: x + (1 - (average or 0)) * (weights[name] - x) for name, x in averages.items()}
            extra = {"ema": averages} if average else None
            tap(step, gradients=present, parameters=weights, extra=extra)


def one_cycle(parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    schedule = {"total_steps": STEPS + 1, "div_factor": 1.0, "final_div_factor": 1.0}
    return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, **schedule)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


ROWS = {
    "a momentum that changes": (
        {"build": one_cycle},
        {"momentum": 0.9},
        "momentum is 0.8506 to 0.95 during the training (run B acts as with 0.9)",
    ),
    "frozen midway in torch": (
        {"build": sgd, "absent": lambda step: step >= 8},
        {},
        "run A leaves b alone in 12 of 20 updates (run B trains it in all)",
    ),
    "frozen midway in the other": (
        {"build": sgd},
        {"until": 8},
        "run B leaves b alone in 12 of 20 updates (run A trains it in all)",
    ),
    "another average": (
        {"build": sgd, "average": 0.9},
        {"average": 0.8},
        "run A's is an average of the parameters after the update, decay 0.9 (run B's",
    ),
}


@pytest.mark.parametrize("name", ROWS, ids=lambda name: name.replace(" ", "_"))
def test_a_difference_is_named(name, tmp_path):
    a, b, text = ROWS[name]
    tapped_torch(tmp_path / "a", **a)
    tapped_numpy(tmp_path / "b", **b)
    result = parity.bisect(tmp_path / "a", tmp_path / "b")
    assert text in " or ".join(result.causes), str(result)


@pytest.mark.parametrize("part", ["loss", "parameters"])
def test_the_same_is_the_same(part, tmp_path):
    tapped_torch(tmp_path / "a", sgd, average=0.9 if part == "loss" else None)
    tapped_numpy(tmp_path / "b", average=0.9 if part == "loss" else None)
    assert parity.bisect(tmp_path / "a", tmp_path / "b").same


@pytest.mark.parametrize(
    ("decay", "part", "consequence", "since"),
    [
        *((0.01, None, 0.0, 0), (1e-4, "parameters", 0.0, 0), (1e-4, "parameters", 4e-3, 3)),
        (1e-4, "loss", 4e-3, 0),  # before any update: no setting is the reason
    ],
)
def test_a_setting_is_named_before_an_array_shows_it(decay, part, consequence, since, tmp_path):
    # Of float32, and one run without a tapped optimizer, as of a loop in JAX. A consequence changes the loss
    # and the gradients of later steps by little, which does not show its cause.
    for run, weight_decay in (("a", 0.01), ("b", decay)):
        net = torch.nn.Linear(3, 4)
        net.load_state_dict({"weight": torch.ones(4, 3) / 3, "bias": torch.ones(4) / 7})
        optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=weight_decay)
        random = np.random.default_rng(0)
        with parity.Tap(tmp_path / run, start=net) as tap:
            for step in range(STEPS):
                change = consequence if run == "b" and step >= since else 0.0
                for p in net.parameters():
                    gradient = random.standard_normal(p.shape)
                    p.grad = torch.from_numpy((gradient + change * np.roll(gradient, 1)).astype(np.float32))
                optimizer.step()
                arrays = {"gradients": net, "parameters": net}
                tap(step, loss=1 + change, optimizer=optimizer if run == "a" else None, **arrays)
    result = parity.bisect(tmp_path / "a", tmp_path / "b")
    assert (result.part, result.same) == (part, part is None), str(result)
    assert result.step == (None if part is None else 0)
    assert (part is None) == (not result.causes)
    settings = [text for text in result.causes if "weight_decay is 0.01 (run B acts as with" in text]
    assert bool(settings) == (part == "parameters")
    assert all("0.0001" in text for text in settings)
    assert any("no array differs by more than rounding yet" in note for note in result.notes) == (
        part == "parameters"
    )


@pytest.mark.parametrize(("smoothing", "clip"), [(0.1, None), (0.3, None), (0.1, 0.05), (0.0, 0.05)])
def test_smoothed_labels_are_named_with_their_share(smoothing, clip, tmp_path):
    # Where gradients are clipped, the share is unknown; and other labels are no smoothing.
    random = np.random.default_rng(0)
    x = torch.from_numpy(random.standard_normal((3, 9, 5)))
    for run, share in (("a", 0.0), ("b", smoothing)):
        torch.manual_seed(0)
        net = torch.nn.Linear(5, 4).double()
        with parity.Tap(tmp_path / run, start=net) as tap:
            for step, rows in enumerate(x):
                labels = (torch.arange(9) + step) % 4
                others = labels if smoothing or run == "a" else labels.flip(0)
                net.zero_grad()
                loss = torch.nn.functional.cross_entropy(net(rows), others, label_smoothing=share)
                loss.backward()
                if clip:
                    torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
                tap(step, batch=(rows, labels), loss=loss, gradients=net, parameters=net)
    (cause,) = parity.bisect(tmp_path / "a", tmp_path / "b").causes
    text = f"label smoothing: run B smooths labels {'' if clip else f'by {smoothing:g} '}more"
    assert (cause == text) == (smoothing > 0)


@pytest.mark.parametrize(
    ("smoothed", "tied", "unlabelled", "named"),
    [
        ("b", False, 3, "run B smooths labels more"),
        ("a", False, 3, "run A smooths labels more"),
        ("b", True, 3, "run B smooths labels more"),
        ("b", False, 1, None),  # one class without a label shows nothing
        ("penalty", False, 3, None),  # of the mean logit, which moves all classes alike
        ("logits", False, 3, None),
        ("", False, 3, None),  # other labels
    ],
)
@pytest.mark.parametrize("transposed", [False, True])
def test_smoothed_labels_are_named_by_the_weight_alone(
    smoothed, tied, unlabelled, named, transposed, tmp_path
):
    random = np.random.default_rng(0)
    words, size = 7, 5
    codes = torch.from_numpy(random.permutation(np.arange(24) % (words - unlabelled)))
    for run in "ab":
        torch.manual_seed(0)
        embedding = torch.nn.Embedding(words, size).double()
        head = torch.nn.Linear(size, words, bias=False).double()
        if tied:
            head.weight = embedding.weight
        weights = {"head": head.weight} if tied else {"head": head.weight, "embedding": embedding.weight}
        inputs, labels = codes, codes.roll(1)
        if tied:  # some classes are among the inputs or the labels alone
            inputs, labels = inputs.where(inputs != 2, 1), labels.where(labels != 0, 1)
        others = labels.flip(0) if not smoothed and run == "b" else labels
        logits = head(embedding(inputs).tanh())
        share = 0.1 if run == smoothed else 0.0
        loss = torch.nn.functional.cross_entropy(logits, others, label_smoothing=share)
        if run == "b" and smoothed in ("penalty", "logits"):
            loss = loss + 0.1 * (
                logits.mean() if smoothed == "penalty" else logits.logsumexp(1).square().mean()
            )
        loss.backward()
        arrays = {name: weight.grad for name, weight in weights.items()}
        starts = {name: weight.detach() for name, weight in weights.items()}
        if transposed and run == "b":
            arrays, starts = ({name: x.T for name, x in part.items()} for part in (arrays, starts))
        with parity.Tap(tmp_path / run, start=starts, full=(0,)) as tap:
            tap(0, batch=(inputs, labels), loss=loss, gradients=arrays, parameters=starts)
    causes = parity.bisect(tmp_path / "a", tmp_path / "b").causes
    assert [cause for cause in causes if "label smoothing" in cause] == (
        [f"label smoothing: {named}"] if named else []
    )


@pytest.mark.parametrize("in_loss", [True, False])
@pytest.mark.parametrize(
    ("run", "multiple", "named"), [("b", 0.1, "B"), ("a", 0.1, "A"), ("b", np.inf, None), ("b", 0.0, None)]
)
def test_decay_is_named_where_both_runs_clip_their_gradients(run, multiple, named, in_loss, tmp_path):
    random = np.random.default_rng(0)
    weights = {"w": random.standard_normal((4, 3)), "b": random.standard_normal(4)}
    for name in "ab":
        stream = np.random.default_rng(1)
        with parity.Tap(tmp_path / name, start=weights) as tap:
            for step in range(6):
                gradients = {k: stream.standard_normal(w.shape) for k, w in weights.items()}
                if name == run:
                    others = random.standard_normal(4)
                    if multiple:
                        gradients = {k: g + multiple * weights[k] for k, g in gradients.items()}
                    else:
                        gradients["b"] = gradients["b"] + others
                with np.errstate(invalid="ignore"):
                    norm = np.sqrt(sum((g**2).sum() for g in gradients.values()))
                    gradients = {k: g * (0.5 / norm) for k, g in gradients.items()}
                loss = 1.0 + 0.01 * (in_loss and name == run)
                tap(step, batch=np.arange(3.0), loss=loss, gradients=gradients, parameters=weights)
    causes = parity.bisect(tmp_path / "a", tmp_path / "b").causes
    text = f"weight decay: run {named} adds a multiple of the parameters to the gradients"
    text += ", as a penalty in the loss" if in_loss else ""
    if multiple == np.inf:
        text = "gradients of run B are not finite: b, w"
    assert (list(causes) == [text]) == (multiple > 0), causes
    assert multiple or not any("weight decay" in cause for cause in causes)


@pytest.mark.parametrize("decayed", ["all", "weight"])
def test_an_array_whose_gradient_is_rounding_is_not_called_frozen_for_a_decay(decayed, tmp_path):
    # A bias before BatchNorm stays as it is without a decay.
    random = np.random.default_rng(0)
    start = {"weight": (4, 3), "bias": 4, "scale": 4}
    start = {name: random.standard_normal(shape) for name, shape in start.items()}
    for run in "ab":
        weights = {name: torch.nn.Parameter(torch.from_numpy(w.copy())) for name, w in start.items()}
        groups = [
            {"params": [weights["weight"]], "weight_decay": 0.1},
            {
                "params": [weights["bias"], weights["scale"]],
                "weight_decay": 0.1 if run == "b" and decayed == "all" else 0.0,
            },
        ]
        optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9)
        streams = {name: np.random.default_rng(1) for name in start}
        streams["bias"] = np.random.default_rng(ord(run))
        with parity.Tap(tmp_path / run, start=weights) as tap:
            for step in range(8):
                for name, scale in (("weight", 1.0), ("scale", 1.0), ("bias", 1e-19)):
                    gradient = scale * streams[name].standard_normal(start[name].shape)
                    weights[name].grad = torch.from_numpy(gradient)
                optimizer.step()
                gradients = {name: w.grad for name, w in weights.items()}
                tap(step, batch=np.arange(3.0), loss=1.0, gradients=gradients, parameters=weights)
    result = parity.bisect(tmp_path / "a", tmp_path / "b")
    assert result.same == (decayed == "weight")
    text = "run A's weight_decay is 0 and 0.1 (run B acts as with 0.1)"
    assert result.same or result.causes[0] == text, result.causes


def test_a_larger_difference_of_gradients_is_no_rounding(tmp_path):
    shape, index = (40, 40), tuple(axis[0] for axis in sample_indices((40, 40), 0))
    for run, change in (("a", 0.0), ("b", 0.15)):
        gradient = np.random.default_rng(0).standard_normal(shape)
        gradient[index] += change
        with parity.Tap(tmp_path / run, start={"w": np.ones(shape)}) as tap:
            arrays = {"gradients": {"w": gradient}, "parameters": {"w": np.ones(shape)}}
            tap(0, batch=np.ones((2, 3)), loss=1.0 + 1e-2 * change, **arrays)
    causes = parity.bisect(tmp_path / "a", tmp_path / "b").causes
    assert "the forward pass differs: " in causes[0]
