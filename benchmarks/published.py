"""How far is jaxpar.estimate from what others measured and published?

    python benchmarks/published.py [--only WORD] [--json] [--out docs/estimate.md]

Each row is a number that somebody published for a training step on real GPUs, with its source. The same
model, batch and precision is written here in Flax and handed to `jaxpar.estimate`, which compiles its step
for that card and predicts the throughput. Nothing is fitted: what the prediction assumes is in
jaxpar/_tools/estimate/hardware.py, for all rows alike. It needs XLA's compiler for GPUs
(`jaxpar[gpu-compiler]`) and no GPU.

Mixed precision is bfloat16 here, where most published runs used float16; both have the same rates. With
`--out` the table replaces the one between the two marks of that file.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import jaxpar

Shape = jax.ShapeDtypeStruct


def seeds() -> nnx.Rngs:
    """Some; only the shapes of what they make are asked for."""
    return nnx.Rngs(0)


# ------------------------------------------------------------------------------------------- ResNet-50


class Convolution(nnx.Module):
    """A convolution without bias, its BatchNorm, and ReLU if asked for."""

    def __init__(self, inside, outside, size, dtype, stride=1, relu=True):
        options = {"strides": stride, "padding": size // 2, "use_bias": False, "dtype": dtype}
        self.conv = nnx.Conv(inside, outside, (size, size), **options, rngs=seeds())
        self.norm = nnx.BatchNorm(outside, momentum=0.9, dtype=dtype, rngs=seeds())
        self.relu = relu

    def __call__(self, x):
        x = self.norm(self.conv(x))
        return nnx.relu(x) if self.relu else x


class Bottleneck(nnx.Module):
    """Version 1.5: the stride is in the 3x3 convolution."""

    def __init__(self, inside, width, stride, dtype):
        self.a = Convolution(inside, width, 1, dtype)
        self.b = Convolution(width, width, 3, dtype, stride)
        self.c = Convolution(width, 4 * width, 1, dtype, relu=False)
        self.short = None if inside == 4 * width else Convolution(inside, 4 * width, 1, dtype, stride, False)

    def __call__(self, x):
        return nnx.relu(self.c(self.b(self.a(x))) + (x if self.short is None else self.short(x)))


class ResNet50(nnx.Module):
    def __init__(self, dtype, depths=(3, 4, 6, 3)):
        self.stem, inside, blocks = Convolution(3, 64, 7, dtype, 2), 64, []
        for stage, depth in enumerate(depths):
            for i in range(depth):
                blocks.append(Bottleneck(inside, 64 * 2**stage, 2 if stage and not i else 1, dtype))
                inside = 256 * 2**stage
        self.blocks, self.head = nnx.List(blocks), nnx.Linear(inside, 1000, dtype=dtype, rngs=seeds())

    def __call__(self, x):
        x = nnx.max_pool(self.stem(x), (3, 3), (2, 2), ((1, 1), (1, 1)))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((1, 2)))


def classified(net, images, labels):
    logits = net(images).astype(jnp.float32)
    wanted = optax.smooth_labels(jax.nn.one_hot(labels, 1000), 0.1)
    return optax.softmax_cross_entropy(logits, wanted).mean()


def resnet(b: int, dtype: Any) -> tuple:
    net, images = functools.partial(ResNet50, dtype), Shape((b, 224, 224, 3), dtype)
    return net, optax.sgd(0.1, momentum=0.875), classified, images, Shape((b,), jnp.int32)


# --------------------------------------------------------------------------------- BERT-large and GPT-2


def dropping(rate):
    """Dropout; without one there are no random numbers in the module."""
    return nnx.Dropout(rate, rngs=seeds()) if rate else lambda x: x


class Attention(nnx.Module):
    """`fused` is JAX's name of a kernel; if None, the scores are in memory, as they were once."""

    def __init__(self, width, heads, dtype, *, fused, causal, dropout):
        self.qkv = nnx.Linear(width, 3 * width, dtype=dtype, rngs=seeds())
        self.out = nnx.Linear(width, width, dtype=dtype, rngs=seeds())
        self.drop, self.heads, self.fused, self.causal = dropping(dropout), heads, fused, causal

    def __call__(self, x):
        b, t, width = x.shape
        q, k, v = jnp.split(self.qkv(x).reshape(b, t, 3 * self.heads, width // self.heads), 3, 2)
        if self.fused or self.causal:
            attend = functools.partial(jax.nn.dot_product_attention, implementation=self.fused or "xla")
            return self.out(attend(q, k, v, is_causal=self.causal).reshape(x.shape))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(width // self.heads)
        part = self.drop(jax.nn.softmax(scores.astype(jnp.float32)).astype(x.dtype))
        return self.out(jnp.einsum("bhqk,bkhd->bqhd", part, v).reshape(x.shape))


class Block(nnx.Module):
    """GPT-2 normalizes before, BERT behind."""

    def __init__(self, width, heads, dtype, *, before, dropout=0.0, **attention):
        self.norms = nnx.List([nnx.LayerNorm(width, dtype=dtype, rngs=seeds()) for _ in range(2)])
        self.attention = Attention(width, heads, dtype, dropout=dropout, **attention)
        self.up = nnx.Linear(width, 4 * width, dtype=dtype, rngs=seeds())
        self.down = nnx.Linear(4 * width, width, dtype=dtype, rngs=seeds())
        self.drop, self.before = dropping(dropout), before

    def feed(self, x):
        return self.down(nnx.gelu(self.up(x)))

    def __call__(self, x):
        for norm, layer in zip(self.norms, (self.attention, self.feed), strict=True):
            x = x + self.drop(layer(norm(x))) if self.before else norm(x + self.drop(layer(x)))
        return x


class Transformer(nnx.Module):
    def __init__(self, words, places, width, depth, heads, dtype, **block):
        self.words = nnx.Embed(words, width, dtype=dtype, rngs=seeds())
        self.places = nnx.Embed(places, width, dtype=dtype, rngs=seeds())
        self.norm = nnx.LayerNorm(width, dtype=dtype, rngs=seeds())
        self.blocks = nnx.List([Block(width, heads, dtype, **block) for _ in range(depth)])
        self.answer = nnx.Linear(width, 2, dtype=dtype, rngs=seeds())

    def __call__(self, tokens):
        x = self.words(tokens) + self.places(jnp.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


cross_entropy = optax.softmax_cross_entropy_with_integer_labels


def next_word(net, tokens, targets):
    return cross_entropy(net.words.attend(net(tokens)).astype(jnp.float32), targets).mean()


def hidden_words(net, tokens, places, targets):
    found = jnp.take_along_axis(net(tokens), places[..., None], 1)
    return cross_entropy(net.words.attend(found).astype(jnp.float32), targets).mean()


def begin_and_end(net, tokens, targets):
    return cross_entropy(net.answer(net(tokens)).astype(jnp.float32).swapaxes(1, 2), targets).mean()


def gpt2(b: int) -> tuple:
    sizes = {"words": 50304, "places": 1024, "width": 768, "depth": 12, "heads": 12, "dtype": jnp.bfloat16}
    net = functools.partial(Transformer, **sizes, before=True, fused="cudnn", causal=True)
    tokens = Shape((b, 1024), jnp.int32)
    return net, optax.adamw(6e-4), next_word, tokens, tokens


def bert(b: int, length: int, hidden: int, dtype: Any = jnp.bfloat16) -> tuple:
    """BERT-large; `hidden` words of a row are asked for, or where an answer begins and ends if 0."""
    sizes = {"words": 30528, "places": 512, "width": 1024, "depth": 24, "heads": 16, "dtype": dtype}
    net = functools.partial(Transformer, **sizes, before=False, fused=None, causal=False, dropout=0.1)
    tokens = Shape((b, length), jnp.int32)
    asked = Shape((b, hidden or 2), jnp.int32)
    if hidden:
        return net, optax.lamb(6e-3), hidden_words, tokens, asked, asked
    return net, optax.adamw(3e-5), begin_and_end, tokens, asked


# -------------------------------------------------------------------------------------------- the table

NVIDIA = "https://github.com/NVIDIA/DeepLearningExamples/blob/729963dd47e7c8bd462ad10bfac7a7b0b604e6dd"
LAMBDA = (
    "https://github.com/lambdal/deeplearning-benchmark/blob/aa5addb6a53675a649a80036dad548f1c27cbcc4/pytorch"
)
SOURCES = {
    "NVIDIA, TensorFlow with XLA": f"{NVIDIA}/TensorFlow/Classification/ConvNets/resnet50v1.5/README.md",
    "NVIDIA, PyTorch": f"{NVIDIA}/PyTorch/Classification/ConvNets/resnet50v1.5/README.md",
    "NVIDIA, MXNet": f"{NVIDIA}/MxNet/Classification/RN50v1.5/README.md",
    "NVIDIA, PyTorch (BERT)": f"{NVIDIA}/PyTorch/LanguageModeling/BERT/README.md",
    "NVIDIA, Paddle (BERT)": f"{NVIDIA}/PaddlePaddle/LanguageModeling/BERT/README.md",
    "Lambda, PyTorch": f"{LAMBDA}/pytorch-train-throughput-v2-fp16.csv",
    "Lambda, PyTorch, TF32": f"{LAMBDA}/pytorch-train-throughput-v2-fp32.csv",
    "llm.c": "https://github.com/karpathy/llm.c/blob/f1e2ace651495b74ae22d45d1723443fd00ecd3a/scripts/run_gpt2_124M.sh",
    "llm.c, run by K. Jordan": "https://github.com/KellerJordan/modded-nanogpt/blob/"
    "f411b3d346aa52d3504324ca93c230fd84c6c07f/records/track_1_short/2024-10-13_llmc/README.md",
}
BF16, TF32 = jnp.bfloat16, jnp.float32
UPDATE = 524_288 / 1024
"""Rows of one update of llm.c."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A model on a card, and what was published: rows per second of so many devices, by whom."""

    model: str
    card: str
    batch: int
    precision: str
    make: Callable[[], tuple]
    published: tuple[tuple[int, float, str], ...]


def _resnet(card: str, b: int, dtype: Any, *published: tuple[int, float, str]) -> Case:
    precision = "mixed" if dtype == BF16 else "TF32"
    return Case("ResNet-50", card, b, precision, functools.partial(resnet, b, dtype), published)


def _bert(card: str, b: int, length: int, hidden: int, *published: tuple[int, float, str]) -> Case:
    return Case(
        f"BERT-large, {length}", card, b, "mixed", functools.partial(bert, b, length, hidden), published
    )


def _gpt2(card: str, *published: tuple[int, float, str]) -> Case:
    return Case("GPT-2 124M, 1024", card, 64, "mixed", functools.partial(gpt2, 64), published)


CASES = (
    _resnet(
        "a100-40",
        256,
        BF16,
        (1, 2375, "NVIDIA, TensorFlow with XLA"),
        (8, 17400, "NVIDIA, TensorFlow with XLA"),
    ),
    _resnet("a100-40", 256, TF32, (1, 909, "NVIDIA, TensorFlow with XLA")),
    _resnet("a100", 256, BF16, (1, 2470, "NVIDIA, PyTorch")),
    _resnet("a100", 512, BF16, (1, 3410.52, "NVIDIA, MXNet"), (8, 26673.72, "NVIDIA, MXNet")),
    _resnet("h100", 1280, BF16, (1, 2790, "Lambda, PyTorch"), (8, 22105, "Lambda, PyTorch")),
    _resnet("h100", 640, TF32, (1, 1895, "Lambda, PyTorch, TF32")),
    _bert("a100", 256, 128, 20, (1, 580, "NVIDIA, PyTorch (BERT)"), (1, 694, "NVIDIA, Paddle (BERT)")),
    _bert("a100", 32, 512, 80, (1, 210, "NVIDIA, PyTorch (BERT)"), (1, 264, "NVIDIA, Paddle (BERT)")),
    _bert("h100", 112, 384, 0, (1, 310, "Lambda, PyTorch"), (8, 2370, "Lambda, PyTorch")),
    _gpt2("a100", (8, UPDATE / 0.3, "llm.c")),
    _gpt2("h100", (8, UPDATE / 0.14, "llm.c, run by K. Jordan")),
)


@dataclasses.dataclass(frozen=True)
class Row:
    model: str
    card: str
    devices: int
    batch: int
    precision: str
    predicted: float
    published: float
    source: str
    overlap: float
    gigabytes: float
    seconds: float

    @property
    def ratio(self) -> float:
        return self.predicted / self.published


def predict(case: Case) -> list[Row]:
    """Compiles once for eight devices; the same program without its exchange is that of one."""
    began = time.perf_counter()
    found = jaxpar.estimate(*case.make(), device=case.card, devices=8)
    if found.why:
        sys.exit(f"published.py: {found.why}.")
    took, rates = time.perf_counter() - began, {p.devices: p.rows_per_second for p in found.points}
    same = case.model, case.card
    rest = found.schedule.overlap, found.memory.total / 1e9, took
    return [
        Row(*same, n, case.batch, case.precision, rates[n], published, source, *rest)
        for n, published, source in case.published
    ]


def geometric_mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def table(rows: list[Row]) -> str:
    lines = [
        "| model, length | card | devices | rows | precision | predicted rows/s | published | ratio | by |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        source = f"[{r.source.removesuffix(' (BERT)').removesuffix(', TF32')}]({SOURCES[r.source]})"
        figures = f"{r.predicted:,.0f} | {r.published:,.0f} | {r.ratio:.2f}"
        case = f"{r.model} | {r.card} | {r.devices} | {r.batch} | {r.precision}"
        lines.append(f"| {case} | {figures} | {source} |")
    ratios = [r.ratio for r in rows]
    lines += [
        "",
        f"Geometric mean of predicted / published: {geometric_mean(ratios):.2f}; "
        f"from {min(ratios):.2f} to {max(ratios):.2f}.",
    ]
    return "\n".join(lines)


MARKS = "<!-- published.py -->", "<!-- end -->"


def put(path: Path, text: str) -> None:
    """Replaces what stands between the marks."""
    begin, end = map(re.escape, MARKS)
    whole = path.read_text()
    path.write_text(
        re.sub(f"({begin}\n).*?({end})", lambda m: f"{m[1]}{text}\n{m[2]}", whole, flags=re.DOTALL)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="rows whose model and card have this word")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, help="a page whose table is replaced")
    options = parser.parse_args()
    rows = []
    for case in CASES:
        if options.only in f"{case.model} {case.card} {case.batch}":
            rows += predict(case)
            print(f"{case.model}, {case.card}: {rows[-1].seconds:.0f} s", file=sys.stderr)
    print(
        json.dumps([dataclasses.asdict(r) | {"ratio": r.ratio} for r in rows], indent=1)
        if options.json
        else table(rows)
    )
    if options.out:
        put(options.out, table(rows))


if __name__ == "__main__":
    main()
