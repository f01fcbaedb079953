"""port: torch's optimizers and schedulers become lines of jaxpar.optim that do the same, step by step."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import test_lr_scheduler
import test_optim
import torch
from click.testing import CliRunner
from comparing import named
from porting import nets
from torch.optim import lr_scheduler

from jaxpar import errors, parity
from jaxpar._cli.main import cli
from jaxpar.parity._port.training.lines import Training

EXAMPLE = torch.linspace(-1, 1, 3 * 2 * 3 * 4).reshape(3, 2, 3, 4)
WARMUP = 5


@functools.cache
def port_of(kind=nets.Net):
    return parity.port(kind, EXAMPLE if kind is nets.Net else torch.linspace(-1, 1, 18).reshape(3, 6))


def sgd(net, **options):
    return torch.optim.SGD(net.parameters(), **{"lr": 0.1, "momentum": 0.9, **options})


def plainest_and_richest(cases):
    """Of each name's rows the one with the fewest options, and the one with the most."""
    names = dict.fromkeys(name for name, _ in cases)
    rows = [sorted((o for n, o in cases if n == name), key=len) for name in names]
    return [(name, row) for name, all_ in zip(names, rows, strict=True) for row in all_[:1] + all_[1:][-1:]]


OPTIMIZERS = [
    *plainest_and_richest(test_optim.CASES),
    ("LBFGS", {}),
    ("LBFGS", {"lr": 0.5, "max_iter": 4, "line_search_fn": "strong_wolfe"}),
    ("SGD", {"lr": torch.tensor(0.25, dtype=torch.float64), "foreach": False}),
    ("Adam", {"lr": np.float64(0.5), "capturable": False, "fused": None}),
]


@pytest.mark.full
@pytest.mark.sampled(6)
@pytest.mark.parametrize(("name", "options"), OPTIMIZERS, ids=named)
def test_every_optimizer_takes_torchs_steps(name, options):
    lines = port_of().optimizer(lambda net: getattr(torch.optim, name)(net.parameters(), **options))
    assert lines.same, f"{lines}\n{lines.comparison}"
    assert lines.largest < 1e-12
    assert lines.comparison.steps == (1 if name == "LBFGS" else 5)


ROWS = [(name, options) for name, rows in test_lr_scheduler.CASES.items() for options in rows]
MORE = [
    ("ReduceLROnPlateau", {"patience": 3, "factor": 0.5, "min_lr": 1e-4, "mode": "max"}),
    ("ReduceLROnPlateau", {"cooldown": 2, "threshold_mode": "abs"}),
]


@pytest.mark.full
@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "options"), [*plainest_and_richest(ROWS), *MORE], ids=named)
def test_every_scheduler_has_torchs_rates(name, options):
    lines = port_of().scheduler(lambda net: getattr(lr_scheduler, name)(sgd(net), **options))
    assert lines.same, f"{lines}\n{lines.comparison}"
    assert lines.largest < 1e-12


def two_groups(net, **options):
    head = {"params": net.head.parameters(), "lr": 0.5, "weight_decay": 0.0}
    rest = [x for name, x in net.named_parameters() if not name.startswith("head")]
    return torch.optim.AdamW([{"params": rest}, head], **{"lr": 0.1, "weight_decay": 0.3, **options})


def without_decay(net):
    parts = {True: [], False: []}
    for x in net.parameters():
        parts[x.ndim == 1].append(x)
    return torch.optim.AdamW([{"params": parts[False]}, {"params": parts[True], "weight_decay": 0}], lr=0.01)


def the_head_alone(net):
    return torch.optim.Adam([net.mix, *net.head.parameters()], lr=0.01, betas=(0.8, 0.9))


def of_names(net):
    return torch.optim.Adam(net.named_parameters(), lr=0.01)


def adafactor(net):
    return torch.optim.Adafactor(net.parameters())


def frozen_below(net):
    for x in (*net.conv.parameters(), *net.norm.parameters()):
        x.requires_grad_(False)
    return torch.optim.SGD(net.parameters(), lr=0.01)


def two_of_three(net):
    return torch.optim.SGD([{"params": net.head.parameters()}, {"params": [net.mix], "lr": 0.3}], lr=0.2)


GROUPS = {
    sgd: "optim.sgd(lr=0.1, momentum=0.9)",
    of_names: "optim.adam(lr=0.01)",
    two_groups: 'optim.param_groups(optim.adamw, [{"params": ...}, {"params": "head", "lr": 0.5, '
    '"weight_decay": 0.0}], lr=0.1, weight_decay=0.3)',
    without_decay: 'optim.param_groups(optim.adamw, [{"params": ...}, {"params": lambda path: '
    'path.split("/")[-1] in ("bias", "scale"), "weight_decay": 0}], lr=0.01)',
    the_head_alone: 'optim.param_groups(optim.adam, [{"params": ["head", "mix"]}, {"params": ..., "frozen": '
    "True}], lr=0.01, betas=(0.8, 0.9))",
    frozen_below: 'optim.param_groups(optim.sgd, [{"params": ["head", "hidden", "mix"]}, {"params": ..., '
    '"frozen": True}], lr=0.01)',
    adafactor: "optim.adafactor(lr=0.01, dims=lambda path, x: (0, 1) if x.ndim == 4 else (-2, -1))",
}


def line(lines):
    """The source without its imports, in one line."""
    body = " ".join(each.strip() for each in lines.source.splitlines() if each and "import" not in each)
    for mark in "([":
        body = body.replace(f"{mark} ", mark)
    for mark in ")]":
        body = body.replace(f", {mark}", mark).replace(f" {mark}", mark)
    return body


@pytest.mark.parametrize("make", GROUPS, ids=lambda make: make.__name__)
def test_groups_are_said_by_paths(make):
    lines = port_of().optimizer(make)
    assert line(lines) == f"optimizer = optim.Optimizer(net, {GROUPS[make]})"
    assert lines.same, lines.comparison


def test_what_a_scheduler_has_written_is_taken_back():
    def scheduled(net):
        optimizer = two_groups(net)
        lr_scheduler.OneCycleLR(optimizer, 0.4, total_steps=40)
        return optimizer

    lines = port_of().optimizer(scheduled)
    assert "betas" not in lines.source
    assert lines.same, lines.comparison
    warmed = port_of().optimizer(lambda net: lr_scheduler.LinearLR(sgd(net)).optimizer)
    assert line(warmed).endswith("optim.sgd(lr=0.1, momentum=0.9))")
    assert warmed.same, warmed.comparison


@pytest.mark.full
def test_muon_knows_which_matrices_lie_as_in_torch():
    lines = port_of(nets.Matrices).optimizer(lambda net: torch.optim.Muon(net.parameters(), lr=0.5))
    assert 'dims=lambda path, x: (0, 1) if path.split("/")[-1] == "mix" else (1, 0)' in lines.source
    assert lines.same, lines.comparison
    one = port_of(nets.Matrices).optimizer(lambda net: torch.optim.Muon([net.mix], lr=0.5))
    assert "dims=lambda path, x: (0, 1))" in line(one)
    assert one.same, one.comparison


def linear(step, *, total):
    """To zero."""
    return max(0.0, total - step) / total


def sequence(net):
    optimizer = sgd(net)
    warm = lr_scheduler.LinearLR(optimizer, 0.1)
    return lr_scheduler.SequentialLR(optimizer, [warm, lr_scheduler.CosineAnnealingLR(optimizer, 90)], [5])


def chain(net):
    optimizer = sgd(net)
    parts = lr_scheduler.ConstantLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.9)
    return lr_scheduler.ChainedScheduler(parts)


SCHEDULERS = {
    "a sequence": (
        sequence,
        "lr_scheduler.SequentialLR(optimizer, [lr_scheduler.LinearLR(optimizer, start_factor=0.1), "
        "lr_scheduler.CosineAnnealingLR(optimizer, T_max=90)], milestones=[5])",
    ),
    "a chain": (
        chain,
        "lr_scheduler.ChainedScheduler([lr_scheduler.ConstantLR(optimizer), "
        "lr_scheduler.ExponentialLR(optimizer, gamma=0.9)], optimizer)",
    ),
    "the momentum that was before the cycle": (
        lambda net: lr_scheduler.OneCycleLR(two_groups(net), [0.1, 0.2], total_steps=40),
        "lr_scheduler.OneCycleLR(optimizer, max_lr=[0.1, 0.2], total_steps=40)",
    ),
    "a frozen group": (
        lambda net: lr_scheduler.StepLR(the_head_alone(net), 3),
        "lr_scheduler.StepLR(optimizer, step_size=3)",
    ),
    "a list for a frozen group": (
        lambda net: lr_scheduler.OneCycleLR(
            two_of_three(net), [0.1, 0.2], total_steps=40, cycle_momentum=False
        ),
        "lr_scheduler.OneCycleLR(optimizer, max_lr=[0.1, 0.2, 0.2], total_steps=40, cycle_momentum=False)",
    ),
    "an uneven cycle": (
        lambda net: lr_scheduler.CyclicLR(sgd(net), 0.1, 0.2, step_size_up=4, step_size_down=7),
        "lr_scheduler.CyclicLR(optimizer, base_lr=0.1, max_lr=0.2, step_size_up=4, step_size_down=7)",
    ),
    "averages": (
        lambda net: torch.optim.swa_utils.SWALR(two_groups(net), 0.2, anneal_strategy="linear"),
        'swa_utils.SWALR(optimizer, swa_lr=0.2, anneal_strategy="linear")',
    ),
    "lambdas": (
        lambda net: lr_scheduler.LambdaLR(
            two_groups(net), [lambda t: 1 / (t + WARMUP), lambda t: math.cos(t)]
        ),
        "WARMUP = 5 scheduler = lr_scheduler.LambdaLR(optimizer, lr_lambda=[lambda t: 1 / (t + WARMUP), "
        "lambda t: math.cos(t)])",
    ),
    "a partial function": (
        lambda net: lr_scheduler.LambdaLR(sgd(net), functools.partial(linear, total=9)),
        'def linear(step, *, total): """To zero.""" return max(0.0, total - step) / total scheduler = '
        "lr_scheduler.LambdaLR(optimizer, lr_lambda=functools.partial(linear, total=9))",
    ),
}


@pytest.mark.parametrize("case", SCHEDULERS)
def test_schedulers_read_as_torchs_do(case):
    make, said = SCHEDULERS[case]
    lines = port_of().scheduler(make)
    said = said.replace("functools.partial(", "partial(")
    assert line(lines).removeprefix("scheduler = ") == said
    assert lines.same, lines.comparison


def test_what_a_function_needs_is_imported():
    lines = port_of().scheduler(SCHEDULERS["lambdas"][0])
    assert lines.source.startswith("import math\n\nfrom jaxpar.optim import lr_scheduler\n")


FAULTS = {
    "an option left out that matters after a million steps": (
        lambda net: torch.optim.ASGD(net.parameters(), t0=10),
        (", t0=10", ""),
    ),
    "an option left out that matters at once": (lambda net: sgd(net, nesterov=True), (", nesterov=True", "")),
    "another optimizer of the same options": (of_names, ("optim.adam(", "optim.adamax(")),
    "the rate of another group": (two_groups, ("head", "hidden")),
    "a group that is trained and should not be": (the_head_alone, ('"frozen": True', '"lr": 1.0')),
    "axes of a convolution": (adafactor, ("(0, 1)", "(1, 2)")),
    "another step": (lambda net: lr_scheduler.StepLR(sgd(net), 30), ("30", "31")),
    "a milestone after all steps that are taken": (
        lambda net: lr_scheduler.MultiStepLR(sgd(net), [30, 10**6]),
        ("1000000", "2000000"),
    ),
    "the other function": (
        lambda net: lr_scheduler.LambdaLR(sgd(net), lambda t: 0.9**t),
        ("0.9**t", "0.9**(t + 1)"),
    ),
    "a momentum that does not cycle": (
        lambda net: lr_scheduler.OneCycleLR(sgd(net), 0.1, total_steps=40),
        ("total_steps=40", "total_steps=40, cycle_momentum=False"),
    ),
    "a metric that should rise": (
        lambda net: lr_scheduler.ReduceLROnPlateau(sgd(net)),
        ("(optimizer)", '(optimizer, mode="max")'),
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_line_is_seen(fault, monkeypatch):
    make, (right, wrong) = FAULTS[fault]
    written = {name: getattr(Training, name) for name in ("optimizer_line", "scheduler_lines")}
    what = "scheduler" if "lr_scheduler" in repr(make.__code__.co_names) else "optimizer"
    assert getattr(port_of(), what)(make).same
    for name, original in written.items():

        def planted(self, *args, original=original):
            return original(self, *args).replace(right.replace('"', "'"), wrong)

        monkeypatch.setattr(Training, name, planted)
    lines = getattr(port_of(), what)(make)
    assert not lines.same
    assert lines.comparison.different


class MySGD(torch.optim.SGD):
    pass


class MyLR(lr_scheduler.StepLR):
    pass


def stepped(net):
    optimizer = sgd(net)
    for x in net.parameters():
        x.grad = torch.ones_like(x)
    optimizer.step()
    return optimizer


def with_an_option(net):
    return torch.optim.SGD([{"params": net.parameters(), "trust": 0.5}])


REFUSED = {
    "no word for an optimizer": (
        "optimizer",
        lambda net: torch.optim.SparseAdam(net.parameters()),
        "no word for torch.optim.sparse_adam.SparseAdam; it has ASGD, Adadelta",
    ),
    "an optimizer of the user's": ("optimizer", lambda net: MySGD(net.parameters()), "no word for .*MySGD"),
    "a scheduler of the user's": ("scheduler", lambda net: MyLR(sgd(net), 3), "no word for .*MyLR"),
    "no optimizer": ("optimizer", lambda net: net, "takes a torch optimizer, or a function .* not Net"),
    "no scheduler": ("scheduler", sgd, "takes a torch scheduler, or a function .* not SGD"),
    "steps": ("optimizer", stepped, "has taken steps"),
    "a tensor": (
        "scheduler",
        lambda net: lr_scheduler.LambdaLR(sgd(net), lambda t: torch.tensor(0.5)),
        "refers to torch, a module",
    ),
    "an object": (
        "scheduler",
        lambda net: lr_scheduler.LambdaLR(sgd(net), Halves()),
        "Halves in a scheduler has no text",
    ),
    "a function that fails": ("optimizer", lambda net: sgd(net.nothing), "fails: AttributeError"),
    "an unknown option": ("optimizer", with_an_option, "has trust in a group, for which"),
    "parameters of nobody": ("optimizer", two_groups(nets.Net()), "Give a function of the module"),
}


class Halves:
    def __call__(self, t):
        return 0.5


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_words_is_refused(case):
    what, given, said = REFUSED[case]
    with pytest.raises(errors.PortError, match=said):
        getattr(port_of(), what)(given)


@pytest.mark.full
def test_objects_are_ported_as_they_are():
    net = nets.Net()
    assert line(port_of().optimizer(sgd(net))).endswith("optim.sgd(lr=0.1, momentum=0.9))")
    assert "frozen" in port_of().optimizer(frozen_below(nets.Net())).source
    assert "adam(lr=0.01)" in port_of().optimizer(of_names(net)).source
    lines = port_of().scheduler(sequence(net))
    assert lines.same, lines.comparison
    port = parity.port(net, EXAMPLE)
    assert '"params": "head", "lr": 0.5' in port.optimizer(two_groups(net)).source
    before = net.head.weight.detach().clone()
    assert torch.equal(net.head.weight, before), "the user's module is not trained"


MAKE = """
import torch
from torch.optim import lr_scheduler


def make_optimizer(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=1e-4)
    return {returned}
"""
RETURNED = {
    "optimizer": ["optim.sgd(lr=0.1, weight_decay=0.0001)"],
    "lr_scheduler.StepLR(optimizer, 30)": ["optim.sgd(", "lr_scheduler.StepLR(optimizer, step_size=30)"],
    "optimizer, lr_scheduler.StepLR(optimizer, 30)": ["optim.sgd(", "lr_scheduler.StepLR("],
}


@pytest.mark.sampled(3)
@pytest.mark.full
@pytest.mark.parametrize("returned", RETURNED)
def test_the_command_prints_the_lines(returned, tmp_path):
    (tmp_path / "make.py").write_text(MAKE.format(returned=returned))
    module = f"{nets.__file__}:Matrices"
    out = ["--out", tmp_path / "net.py", "--optimizer", f"{tmp_path}/make.py:make_optimizer"]
    ended = CliRunner().invoke(cli, [str(each) for each in ["port", module, "--input", "3,6", *out]])
    assert ended.exit_code == 0, ended.output
    for said in RETURNED[returned]:
        assert said in ended.output
    assert ended.output.count("the same: largest difference") == len(RETURNED[returned])
