"""Names of torch that jaxpar lacks: errors name the counterpart, as docs/migration.md's table does."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import jax
import pytest
from flax import linen, nnx

import jaxpar
from jaxpar._counterparts import COUNTERPARTS, NAMESPACES

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "migration.md").read_text()
SECTION = PAGE.partition("## Different names\n")[2].partition("\n## ")[0]

ERRORS = {
    "jaxpar.optim.AdamW": "jaxpar.optim.adamw",
    "jaxpar.optim.StepLR": "jaxpar.optim.lr_scheduler.StepLR",
    "jaxpar.nn.Linear": "flax.nnx.Linear",
    "jaxpar.nn.Conv2d": "jaxpar.nn.channels_first.Conv2d",
    "jaxpar.nn.CrossEntropyLoss": "jaxpar.nn.functional.cross_entropy",
    "jaxpar.nn.MSELoss": "jaxpar.nn.functional.mse_loss",
    "jaxpar.optim.clip_grad_norm_": "jaxpar.optim.clip_grad_norm",
    "jaxpar.nn.HuberLoss": "jaxpar.nn.functional.huber_loss",
    "jaxpar.nn.utils": "jaxpar.optim.clip_grad_norm",
    "jaxpar.utils": "jaxpar.data for torch.utils.data",
    "jaxpar.no_grad": "nothing, as only value_and_grad",
    "jaxpar.manual_seed": "flax.nnx.Rngs",
    "jaxpar.save": "jaxpar.Checkpointer",
    "jaxpar.DataLoader": "jaxpar.data.DataLoader",
    "jaxpar.multinomial": "jaxpar.random.multinomial",
    "jaxpar.random.Categorical": "jaxpar.distributions.Categorical",
    "jaxpar.data.ImageFolder": "the same: it is a data set",
    "jaxpar.data.transforms.ToTensor": "jaxpar.data.transforms.ToArray",
}


def resolved(name: str) -> object:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("name", ERRORS)
def test_a_missing_name_has_its_counterpart(name):
    module, _, attribute = name.rpartition(".")
    text = (
        rf"^module '{module}' has no attribute '{attribute}'\. Instead of torch's {attribute}: {ERRORS[name]}"
    )
    with pytest.raises(AttributeError, match=text):
        resolved(name)
    with pytest.raises(ImportError, match=text):
        exec(f"from {module} import {attribute}")


@pytest.mark.parametrize("module", NAMESPACES)
def test_a_name_of_nobody(module):
    with pytest.raises(AttributeError, match=rf"^module '{module}' has no attribute 'Quasch'$") as caught:
        resolved(f"{module}.Quasch")
    assert (caught.value.name, caught.value.obj) == ("Quasch", importlib.import_module(module))
    with pytest.raises(ImportError, match="has no attribute 'Quasch'"):
        exec(f"from {module} import Quasch")
    assert not hasattr(importlib.import_module(module), "Quasch")


def objects() -> dict:
    net = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    kinds = {"nnx": net, "linen": linen.Dense(3), "function": jax.nn.relu}
    wrappers = (jaxpar.DataParallel, jaxpar.DistributedDataParallel)
    wrapped = {f"{wrapper.__name__} {name}": wrapper(kinds[name]) for wrapper in wrappers for name in kinds}
    return wrapped | {"Optimizer": jaxpar.optim.Optimizer(net, jaxpar.optim.sgd(lr=0.1))}


@pytest.mark.parametrize("kind", objects())
def test_torchs_methods_have_counterparts(kind):
    owner = objects()[kind]
    torch_class = "Optimizer" if kind == "Optimizer" else "Module"
    for name in ("state_dict", "load_state_dict", "zero_grad"):
        counterpart = re.escape(COUNTERPARTS[f"{torch_class}.{name}"])
        with pytest.raises(AttributeError, match=rf"\. Instead of torch's {name}: {counterpart}\.$"):
            getattr(owner, name)
    with pytest.raises(AttributeError, match=rf"^'{type(owner).__name__}' object has no attribute 'quasch'$"):
        owner.quasch  # noqa: B018
    field = {"nnx": "in_features", "linen": "features"}.get(kind.rpartition(" ")[2])
    if field is not None:
        with pytest.raises(AttributeError, match=rf"the module that it wraps has: \.module\.{field}$"):
            getattr(owner, field)


def test_a_property_that_raises_keeps_its_error():
    net = jaxpar.DataParallel(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    del net.placement
    with pytest.raises(AttributeError, match="placement"):
        net.device_ids  # noqa: B018


def test_the_page_has_the_table():
    rows = dict(re.findall(r"^\| `([\w.]+)` \| (.*) \|$", SECTION, re.M))
    assert rows == COUNTERPARTS


def test_every_name_of_jaxpar_in_the_table_exists():
    names = {name for text in COUNTERPARTS.values() for name in re.findall(r"\bjaxpar(?:\.\w+)+", text)}
    assert len(names) > 20
    for name in names:
        resolved(name)


def test_every_name_of_torch_in_the_table_exists():
    torch = pytest.importorskip("torch")
    classes = {"Module": torch.nn.Module, "Optimizer": torch.optim.Optimizer, "torch": torch}
    for row in COUNTERPARTS:
        first, *names = row.split(".")
        if first == "torchvision":  # not installed
            continue
        owner = classes[first]
        for name in names:
            assert hasattr(owner, name), row
            owner = getattr(owner, name)


WITHOUT = {
    "torch.optim": {"SparseAdam", "swap_in_optimizer_params_and_state"},
    "torch.optim.lr_scheduler": set(),
    "torch.nn.modules": {"AdaptiveLogSoftmaxWithLoss", "Container", "CrossMapLRN2d", "FractionalMaxPool2d"}
    | {"FractionalMaxPool3d", "LinearCrossEntropyLoss", "LinearCrossEntropyOptions", "NLLLoss2d", "RNNBase"}
    | {"RNNCellBase", "Softmax2d", "Softmin", "TripletMarginWithDistanceLoss"}
    | {
        f"Lazy{name}{n}d"
        for name in ("BatchNorm", "Conv", "ConvTranspose", "InstanceNorm")
        for n in (1, 2, 3)
    }
    | {"LazyLinear"},
}
"""What torch has, by module, without a counterpart."""


@pytest.mark.parametrize("module", WITHOUT)
def test_all_other_names_of_torch_are_pointed_to(module):
    pytest.importorskip("torch")
    namespace = module.replace("torch", "jaxpar").removesuffix(".modules")
    without = set()
    for name in importlib.import_module(module).__all__:
        try:
            resolved(f"{namespace}.{name}")
        except AttributeError as error:
            if "Instead of" not in str(error):
                without.add(name)
    assert without <= WITHOUT[module]
