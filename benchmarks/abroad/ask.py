"""One pair: its weights, its verdict, its bugs.

python -m benchmarks.abroad.ask NAME FILE [--no-bugs | --add-bugs]
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "DIFFUSERS_VERBOSITY": "error"}


def ask(name: str, planted: bool = True) -> dict[str, Any]:
    started = time.perf_counter()
    answer: dict[str, Any] = {"name": name}
    try:
        built = matched(name)
        found = built.mapping
        answer |= {"weights": str(found), "unmatched": list(found.unmatched)}
        taken = time.perf_counter()
        answer |= healthy(built)
        answer |= {"match_seconds": taken - started, "compare_seconds": time.perf_counter() - taken}
    except Exception as error:
        traceback.print_exc()
        return answer | {"verdict": "none", "error": f"{type(error).__name__}: {error}"[:2000]}
    answer["cured"] = healthy(built.cured)["verdict"] if built.pair.cure else None
    answer["bugs"] = bugs_of(built.cured) if planted and built.pair.bugs else []
    return answer | {"seconds": time.perf_counter() - started}


def with_bugs(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer for the healthy pair, with bugs planted in it now."""
    started = time.perf_counter()
    bugs = bugs_of(matched(answer["name"]).cured)
    return answer | {"bugs": bugs, "seconds": answer["seconds"] + time.perf_counter() - started}


def matched(name: str) -> Any:
    """Both models, with their mapping."""
    from jaxpar import parity

    from . import building, pairs, shim

    shim.installed()
    pair = pairs.BY_NAME[name]
    built = building.build(pair)
    found = parity.match(built.flax, built.torch, **built.call, mapping=pair.mapping or None)
    return dataclasses.replace(built, mapping=found)


def healthy(built: Any) -> dict[str, Any]:
    """Five steps of training."""
    from jaxpar import parity

    from . import building

    mode = built.pair.training
    return said(
        parity.compare(
            built.torch, built.flax, **built.call, **building.TRAINING, mapping=built.mapping, training=mode
        )
    )


def said(comparison: Any) -> dict[str, Any]:
    from jaxpar import parity

    judged = [row for row in comparison.rows if row.outcome is not parity.Outcome.NOISE]
    worst = max(judged, key=lambda row: row.severity)
    divergence = comparison.divergence
    places = (divergence, *divergence.others) if divergence else ()
    return {
        "verdict": "same" if comparison.same else "different",
        "constants": list(comparison.constants),
        "tensors": len(comparison.rows),
        "largest": worst.difference.relative,
        "in": f"{worst.difference.kind.value} {worst.difference.name}".strip(),
        "notes": list(comparison.notes),
        "text": str(comparison),
        "places": [
            {
                "where": place.where,
                "torch": place.reference,
                "flax": place.candidate,
                "causes": [cause.text for cause in place.causes],
            }
            for place in places
        ],
    }


def bugs_of(built: Any) -> list[dict[str, Any]]:
    from . import bugs

    found = []
    for bug in bugs.planted(built):
        started = time.perf_counter()
        try:
            answer = judged(built, bug)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
        found.append({"name": bug.name, **answer, "seconds": time.perf_counter() - started})
    return found


def judged(built: Any, bug: Any) -> dict[str, Any]:
    """Whether the bug was caught, where it was placed, and what it was called."""
    from jaxpar import parity

    from .layers import layers_of

    order = [layer.path for layer in layers_of(built)]
    mapping = dict(built.mapping) | dict(bug.mapping)
    comparison = parity.compare(
        built.torch, bug.flax, **built.call, mapping=mapping or None, training=built.pair.training
    )
    answer = said(comparison)
    causes = [cause for place in answer["places"] for cause in place["causes"]]
    return {
        "caught": not comparison.same,
        "placed": any(right_place(place, bug.places, order) for place in answer["places"][:1]),
        "named": any(re.search(bug.cause, cause) for cause in causes),
        **{key: answer[key] for key in ("largest", "in", "places")},
    }


def right_place(place: dict[str, Any], planted: Sequence[str], order: list[str]) -> bool:
    """Whether the first place that is named is the planted one.

    It is, if it is that layer; if it is the code between two layers, and the planted one lies there in the
    order of the calls; or if what makes the models equal is said of that layer.
    """
    between = re.search(r"between (\S+) and (\S+?)\.?$", place["where"])
    first, last = (between[1], between[2]) if between else ("", "")
    region = order[order.index(first) + 1 : order.index(last) + 1] if {first, last} <= set(order) else []
    named = {place["flax"], *region}
    return any(path in named or any(path in cause for cause in place["causes"]) for path in planted)


def main() -> None:
    name, file, *rest = sys.argv[1:]
    warnings.simplefilter("ignore")
    kept = Path(file)
    add = "--add-bugs" in rest
    answer = with_bugs(json.loads(kept.read_text())) if add else ask(name, "--no-bugs" not in rest)
    kept.write_text(json.dumps(answer, indent=1))


if __name__ == "__main__":
    main()
