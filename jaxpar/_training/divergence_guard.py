"""guard: before a program runs that a rank has not seen, all ranks compare what they are about to run.

torch checks nothing after construction: a rank with another batch shape trains on, one that makes another
number of calls hangs. Here a rank that has something for the first time asks the others, over the host;
who has seen it all asks nothing and pays for the making of a key.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable
from typing import Any

from .._parallel.shards import separate
from ..distributed.step_agreement import ledger
from .held import Held
from .local_batch import Rows
from .wrapper_state import Memory

_numbers = itertools.count(1)


Told = tuple[tuple[str, str], ...]
"""More that must be the same on all ranks: what it is called, and what it is."""


def guard(rows: Rows, held: Held, loss_fn: Callable[..., Any], memory: Memory, told: Told = ()) -> None:
    """Returns when all ranks have the same, or this rank has had it before.

    Raises:
      DivergenceError: ranks differ in the batch, the module, the loss function or what is `told`; names
        both sides.
    """
    # The number is given at a step, which all ranks make, and not to copies, which one may make alone.
    memory.number = memory.number or next(_numbers)
    book = ledger(f"DistributedDataParallel {memory.number}")
    if book is None:
        return
    arrays, statics, form = separate(rows.batch)
    dtypes = tuple(x.dtype for x in arrays)
    mode = memory.synchronises, _name(loss_fn)
    key = (rows.kinds, form, dtypes, statics, held.definition, held.parameters, mode, told)

    def parts() -> dict[str, str]:
        return {k: _without_addresses(v) for k, v in rows.describe().items()} | {
            "the loss function": mode[1],
            "the mode": "averaging" if mode[0] else "no_sync()",
            "what is trained": ", ".join(held.names[i] for i in held.parameters),
            "the module's structure": _digest(held.definition),
            **dict(told),
        }

    book.check(memory.steps, key, parts)


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)


def _without_addresses(text: str) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def _digest(definition: Any) -> str:
    # Words without their order: that of a set is another one in every process.
    text = _without_addresses(repr(getattr(definition, "graphdef", definition)))
    return hashlib.sha256(" ".join(sorted(text.split())).encode()).hexdigest()[:12]
