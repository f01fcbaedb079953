"""Find the pages of the guide that explain a divergence.

The environment variable JAXPAR_DOCS may hold the site's address or folder; without it a report names the page
by its path in the repository, `docs/nn_norms.md`.
"""

from __future__ import annotations

import dataclasses
import os
import re

from .._comparison_data import ComparisonData, Divergence

# The first match counts: AdaptiveAvgPool2d must reach its own pattern before the optimizers' `Ada`.
BY_KIND = {
    r"\w*Norm([123]d)?": "nn_norms",
    r"\w*Conv\w*": "nn_conv",
    r"(RNN|LSTM|GRU)(Cell)?": "nn_recurrent",
    r"\w*Attention|Transformer\w*": "nn_attention",
    r"Embedding(Bag)?": "nn_embedding",
    r"\w*Pool\d?d?|\w*Unpool\d?d?": "nn_pooling",
    r"\w*Dropout\d?d?|\w*(LU6?|Sigmoid|Tanh|Softmax|Soft(plus|sign)|[sS]hrink|swish|Mish)": "nn_dropout",
    r"\w*Pad\d?d?|Upsample\w*|Pixel\w+|Fold|Unfold|ChannelShuffle": "nn_resize",
    r"loss|\w*Loss": "losses",
    r"optimizer|SGD|ASGD|\w*Ada\w*|\w+Adam\w*|RMSprop|Rprop|LBFGS|Muon": "optim",
}
CATALOGUE = "compare"  # the page of all other classes
# An address must not have other schemes, so that a report never links to executable code.
SCHEME = re.compile(r"(?!https?:)[\w+.-]+:|//", re.I)


@dataclasses.dataclass(frozen=True)
class Page:
    """A page of the guide; its address is None if JAXPAR_DOCS is not set."""

    name: str
    address: str | None


def of(comparison: ComparisonData) -> list[Page]:
    """Return the pages on every divergence, without duplicates, and the catalogue of causes."""
    d = comparison.divergence
    if d is None:
        return []
    names = dict.fromkeys(name for divergence in (d, *d.others) if (name := _of_kind(divergence)))
    return [Page(f"docs/{name}.md", _address(name)) for name in (*names, CATALOGUE)]


def _of_kind(divergence: Divergence) -> str | None:
    return next((page for kind, page in BY_KIND.items() if re.fullmatch(kind, divergence.kind)), None)


def _address(name: str) -> str | None:
    base = os.environ.get("JAXPAR_DOCS", "").strip()
    return f"{base.rstrip('/')}/{name}.html" if base and not SCHEME.match(base) else None
