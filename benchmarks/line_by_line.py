"""Prints docs/line_by_line.md: a torch training script, its port, and the page of every line that differs.

    python benchmarks/line_by_line.py [TORCH PORT] > docs/line_by_line.md

Functions and classes of the same name stand side by side, and so do the lines around them. Below each pair
is what every word that differs becomes (WORDS). A line that differs and has no word stops the program.
"""

from __future__ import annotations

import argparse
import ast
import re
from pathlib import Path
from typing import NamedTuple

PORTS = Path(__file__).parents[1] / "examples" / "ports"


class Word(NamedTuple):
    """What the lines have that it explains, on either side, and what it says of them."""

    torch: str
    port: str
    text: str


WORDS = [
    Word(
        r"^(torchrun|python|https) ?|^(Trains|A folder)",
        r"^(jaxpar launch|python) |^(Trains|A folder)",
        "A process may have any number of devices. torchrun, SLURM and Kubernetes start it as well: "
        "[launch](launch.md).",
    ),
    Word(
        r"^(import|from) ",
        r"^(import|from) ",
        "`jaxpar.distributed`, `jaxpar.data`, `jaxpar.optim` and `jaxpar.nn` have torch's words: "
        "[From torch](migration.md).",
    ),
    Word(
        r"nn\.Module\)|def forward|super\(\)|def __init__",
        r"nnx\.Module\)|def __call__|def __init__",
        "A Flax module is called by `__call__`; its layers draw their first values from `rngs`: [nn](nn.md).",
    ),
    Word(
        r"nn\.(Conv2d|Linear)|conv\(x",
        r"nnx\.(Conv|Linear)|conv\(x",
        "Flax's own layers, where they give torch's numbers; `relu` is a function: "
        "[convolutions](nn_conv.md).",
    ),
    Word(
        r"nn\.(BatchNorm|MaxPool)",
        r"nn\.(BatchNorm|MaxPool)",
        "Flax's have another epsilon, momentum, variance or border: [normalisations](nn_norms.md), "
        "[pools](nn_pooling.md).",
    ),
    Word(
        r"\.to\(args\.device, |args\.device =|\.to\(.*non_blocking",
        r"jax_platforms",
        "A step brings its batch to its devices, and a wrapper its parameters: [devices](devices.md).",
    ),
    Word(
        r"x\.mean|TensorDataset\(|torch\.tensor\(\(image",
        r"x\.mean|TensorDataset\(|MEAN\) / STD",
        "Channels are last, and data are NumPy arrays until a step takes them: [data](data.md).",
    ),
    Word(
        r"set_default_dtype",
        r"jax_enable_x64|jaxpar\.to",
        "Computing in float64 is a switch of JAX; a module is moved and cast in place: "
        "[devices](devices.md).",
    ),
    Word(
        r"init_process_group|destroy_process|get_rank\(",
        r"init_process_group|destroy_process|get_rank\(|rank ==",
        "Before anything uses JAX; alone it is a world of one: [distributed](distributed.md).",
    ),
    Word(
        r"manual_seed|resnet18\(",
        r"torch_init|random\.Generator|resnet18\(|seed=generator|^classes =",
        "torch has one generator for all. Here a seed is an argument, and `torch_init` draws torch's own "
        "first weights from it: [random](random.md).",
    ),
    Word(
        r"= (nn\.parallel\.)?DistributedDataParallel",
        r"= jaxpar\.DistributedDataParallel",
        "Rank 0's weights go to all ranks, and each step takes the mean of all gradients: "
        "[DistributedDataParallel](distributed_data_parallel.md). In one process: "
        "[DataParallel](data_parallel.md).",
    ),
    Word(
        r"CrossEntropyLoss",
        r"cross_entropy\(|def criterion",
        "The loss is a function of the module and a batch: [losses](losses.md).",
    ),
    Word(
        r"^scheduler",
        r"^scheduler",
        "torch's schedules, stepped once an epoch or once a batch; saved with the rest: "
        "[lr_scheduler](lr_scheduler.md).",
    ),
    Word(
        r"SGD\(",
        r"sgd\(",
        "torch's optimizer, arguments and numbers, as an optax transformation; `optimizer.lr` can be set: "
        "[optim](optim.md).",
    ),
    Word(
        r"sampler|DataLoader",
        r"sampler|DataLoader",
        "The same rows in the same order from the same seed: [data](data.md). "
        "[prefetch](prefetch.md) copies ahead.",
    ),
    Word(
        r"zero_grad|backward|optimizer\.step|= criterion\(|(net|model)\.train|detach|def train|= train\(",
        r"train_step|[= (]step\(|def train|= train\(",
        "Forward, loss, backward and update are one compiled program. There is nothing to zero, and nothing "
        "waits until a number is read: [train_step](train_step.md).",
    ),
    Word(
        r"\.eval\(\)|no_grad|argmax|def (test|validate)|(test|validate)\(",
        r"eval_step|evaluate\(|def (test|validate)|(test|validate)\(",
        "A compiled program with the module in evaluation mode; `net` itself keeps its mode: "
        "[eval_step](train_step.md#evaluation).",
    ),
    Word(
        r"torch\.(save|load)|state_dict|os\.|shutil|saved|state = |checkpoint|best|epoch\"",
        r"[cC]heckpointer|state = |start_epoch",
        "All of a step or nothing of it, every byte checked, while training goes on; rank 0 alone may save: "
        "[Checkpointer](checkpointer.md).",
    ),
    Word(
        r"torch\.stack",
        r"jnp\.stack",
        "Losses stay on the device until here, so no step waits: [progress](progress.md).",
    ),
    Word(
        r"all_reduce|torch\.tensor\(\[self|tolist",
        r"all_reduce",
        "Collectives return their result and take trees: [distributed](distributed.md#collectives).",
    ),
    Word(
        r"topk\(|correct|return \[100",
        r"top_k\(|correct|return \[100",
        "A tensor's methods are functions of `jax.numpy` and `jax.lax`: [From torch](migration.md).",
    ),
]
"""A line belongs to the first word that it has."""

HEAD = """\
# A PyTorch training script, line by line

A folder of images and a ResNet-18: the training script that every torch user knows, and beside it the same
script with jaxpar. From the same seed both compute the same numbers (`make proof` compares them). Below each
part stands every line that differs, what it becomes, and the page that says more. Both are in
`examples/ports`, with six more pairs; `benchmarks/line_by_line.py`
prints this page from them.
"""


def page(torch: str, port: str) -> str:
    """The whole page, of the text of both scripts.

    Raises:
      ValueError: a line that differs has none of WORDS.
    """
    theirs, ours = parts(torch), parts(port)
    same = lines(torch) & lines(port)
    names = in_order(list(theirs), list(ours))
    return "\n".join([HEAD, *(section(name, theirs.get(name), ours.get(name), same) for name in names)])


def in_order(theirs: list[str], ours: list[str]) -> list[str]:
    """All names: torch's order, and what only the port has before the name that it precedes there."""
    found, waiting = list(theirs), []
    for name in ours:
        if name in theirs:
            place = found.index(name)
            found[place:place] = waiting
            waiting = []
        else:
            waiting.append(name)
    return found + waiting


def parts(source: str) -> dict[str, str]:
    """A script by its functions and classes, and by what stands before and after each."""
    text, found, name, last = source.splitlines(), {}, "The head", 0
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            start = min([node.lineno, *(each.lineno for each in node.decorator_list)]) - 1
            end = node.end_lineno or start
            found |= {name: text[last:start], node.name: text[start:end]}
            name, last = f"After `{node.name}`", end
    found[name] = text[last:]
    return {name: "\n".join(part).strip("\n") for name, part in found.items() if any(part)}


def lines(text: str) -> set[str]:
    """Without indentation, and without what says nothing by itself: a bracket, quotes."""
    return {line.strip() for line in text.splitlines() if re.search(r"\w", line)}


def section(name: str, torch: str | None, port: str | None, same: set[str]) -> str:
    """A part of both scripts, or of one of them."""
    title = name if " " in name else f"`{name}`"
    if torch == port:
        return f"## {title}\n\nThe same in both.\n\n{block(torch)}\n"
    words = explained(torch or "", port or "", same)
    if torch is None or port is None:
        side = "torch" if port is None else "jaxpar"
        return f"## {title}\n\nOnly in the {side} script.\n\n{words}\n"
    return f"## {title}\n\n{PAIR.format(torch=block(torch), port=block(port))}\n\n{words}\n"


PAIR = """\
<table>
<tr><th>torch</th><th>jaxpar</th></tr>
<tr><td>

{torch}

</td><td>

{port}

</td></tr>
</table>"""


def block(code: str | None) -> str:
    return f"```py\n{code}\n```"


def explained(torch: str, port: str, same: set[str]) -> str:
    """For each word that lines of this part have, what it says of them, torch's lines and ours."""
    theirs = [word_of(line, "torch") for line in differing(torch, same)]
    ours = [word_of(line, "port") for line in differing(port, same)]
    found = []
    for word in WORDS:
        before = [f"- {line}" for line, each in theirs if each is word]
        after = [f"+ {line}" for line, each in ours if each is word]
        if before or after:
            found.append("\n".join([word.text, "", "```diff", *before, *after, "```"]))
    return "\n\n".join(found)


def differing(text: str, same: set[str]) -> list[str]:
    found = (line.strip() for line in text.splitlines())
    return [line for line in found if line in lines(text) and line not in same]


def word_of(line: str, side: str) -> tuple[str, Word]:
    for word in WORDS:
        if re.search(getattr(word, side), line.lstrip('"')):
            return line, word
    raise ValueError(f"line_by_line: no word of WORDS explains the {side}'s line {line!r}.")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("torch", type=Path, nargs="?", default=PORTS / "imagenet_torch.py")
    parser.add_argument("port", type=Path, nargs="?", default=PORTS / "imagenet.py")
    args = parser.parse_args()
    print(page(args.torch.read_text(), args.port.read_text()), end="")


if __name__ == "__main__":
    main()
