"""One pair: its weights, its verdict, the verdict when it is cured, and a bug planted in it.

python -m benchmarks.zoos.ask NAME FILE [--no-bugs]
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import time
import traceback
import warnings
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
os.environ.setdefault("JAX_PLATFORMS", "cpu")
MATCHED = ("layout", "outputs", "ignore_torch", "ignore_flax")


@dataclasses.dataclass(frozen=True)
class Question:
    """Attributes:
    torch, jax: the models.
    inputs: of torch's call.
    compared: other arguments of `compare`.
    mapping: the user's lines, or those that `match` printed.
    """

    torch: Any
    jax: Any
    inputs: Any
    compared: Mapping[str, Any]
    mapping: Any

    @property
    def links_flax(self) -> Any:
        from jaxpar.parity._weights.pytree_model import as_flax

        return as_flax(self.jax)

    @property
    def call(self) -> dict[str, Any]:
        """The inputs of one call of a Linen module, which knows its layers only when called."""
        import numpy as np

        if not hasattr(self.jax, "apply"):
            return {}
        images = self.compared.get("layout") == "channels_last"
        x = np.moveaxis(self.inputs, 1, -1) if images else self.inputs
        mode = {"train": False} if "train" in signature(type(self.jax).__call__).parameters else {}
        kwargs = mode | dict(self.compared.get("flax_kwargs", {}))
        return {"inputs": (x.astype("float32") if x.dtype.kind == "f" else x,), "kwargs": kwargs}

    def asked(self, torch: Any = None, mapping: Mapping[str, Any] | None = None) -> Any:
        from jaxpar import parity

        lines = dict(self.mapping) | dict(mapping or {})
        return parity.compare(
            torch or self.torch, self.jax, self.inputs, mapping=lines or None, **self.compared
        )


def cured(model: Any, settings: Mapping[str, Any]) -> Any:
    """Return the torch model with `approximate` of GELUs, `eps` of layers in `below`, and without layers."""
    import torch

    for path, layer in model.named_modules():
        if "approximate" in settings and isinstance(layer, torch.nn.GELU):
            layer.approximate = settings["approximate"]
        elif "approximate" in settings and type(layer).__name__ == "GELUActivation":
            layer.act = torch.nn.GELU(settings["approximate"])
        is_below = settings.get("below", "") in path
        if "eps" in settings and is_below and isinstance(getattr(layer, "eps", None), float):
            layer.eps = settings["eps"]
    for path in settings.get("without", ()):
        model.set_submodule(path, torch.nn.Identity())
    return model


def question(pair: Any, cure: Mapping[str, Any]) -> Question:
    """Both models, with weights as after some training."""
    import numpy as np
    import torch

    from benchmarks.parity.proof import shake
    from jaxpar import parity

    torch.manual_seed(0)
    reference = cured(pair.torch(), cure).train(pair.training)
    shake(reference)
    candidate = pair.jax()
    inputs = pair.inputs(np.random.RandomState(0))
    mapping = pair.compared.get("mapping", {})
    compared = {name: x for name, x in pair.compared.items() if name != "mapping"}
    asked = Question(reference, candidate, inputs, compared | {"training": pair.training}, mapping)
    if needs_mapping(asked):
        known = {name: compared[name] for name in MATCHED if name in compared}
        kwargs = compared.get("flax_kwargs")
        found = parity.match(
            candidate, reference, example=inputs, mapping=mapping or None, kwargs=kwargs, **known
        )
        asked = dataclasses.replace(asked, mapping=found)
    return asked


def needs_mapping(asked: Question) -> bool:
    from jaxpar.errors import MatchError

    from . import bugs

    try:
        bugs.links(asked)
    except MatchError:
        return True
    return False


def ask(name: str, planted: bool = True) -> dict[str, Any]:
    from benchmarks.abroad.ask import said
    from benchmarks.ports.vision import torchvision

    from .libraries import BY_NAME

    torchvision()  # before timm and transformers, which import it as well
    pair = BY_NAME[name]
    started = time.perf_counter()
    answer: dict[str, Any] = {"name": name}
    try:
        asked = question(pair, {})
        answer |= {"weights": str(asked.mapping) if asked.mapping else "", "lines": len(asked.mapping)}
        answer |= said(asked.asked())
        causes = [cause for place in answer["places"] for cause in place["causes"]]
        answer |= {"named": bool(pair.cause) and any(re.search(pair.cause, cause) for cause in causes)}
        answer |= {"seconds": time.perf_counter() - started}
        if pair.cure:
            asked = question(pair, pair.cure)
            answer |= {"cured": said(asked.asked())}
    except Exception as error:
        traceback.print_exc()
        return answer | {"verdict": "none", "error": f"{type(error).__name__}: {error}"[:2000]}
    healthy = answer.get("cured", answer)["verdict"] == "same"
    return answer | {"bug": bug_of(asked, name) if planted and healthy else None}


def bug_of(asked: Question, name: str) -> dict[str, Any] | None:
    """Whether a bug was caught, where it was placed, and what it was called."""
    from benchmarks.abroad.ask import right_place, said

    from . import bugs
    from .libraries import PAIRS

    turn = next(i for i, pair in enumerate(PAIRS) if pair.name == name)
    try:
        bug = bugs.planted(asked, turn)
        if bug is None:
            return None
        comparison = asked.asked(bug.torch, bug.mapping)
    except Exception as error:
        traceback.print_exc()
        return {"name": "", "error": f"{type(error).__name__}: {error}"[:2000]}
    answer = said(comparison)
    partners = {link.flax: link.torch for link in bugs.links(asked).layers}
    places = [in_torch(place, partners) for place in answer["places"]]
    return {
        "name": bug.name,
        "caught": not comparison.same,
        "placed": any(right_place(place, bug.places, bugs.called(asked)) for place in places[:1]),
        "named": any(re.search(bug.cause, cause) for place in places for cause in place["causes"]),
        "places": answer["places"],
    }


def in_torch(place: Mapping[str, Any], partners: Mapping[str, str]) -> dict[str, Any]:
    """A place with torch's paths, which are those of the bugs."""
    words = [partners.get(word.rstrip("."), word) for word in place["where"].split()]
    return {**place, "where": " ".join(words), "flax": place["torch"]}


def main() -> None:
    name, file, *rest = sys.argv[1:]
    warnings.simplefilter("ignore")
    Path(file).write_text(json.dumps(ask(name, "--no-bugs" not in rest), indent=1))


if __name__ == "__main__":
    main()
