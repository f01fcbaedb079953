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

SCRIPTS = Path(__file__).parents[1] / "docs" / "line_by_line"


class Word(NamedTuple):
    """What the lines have that it explains, on either side, and what it says of them."""

    torch: str
    port: str
    text: str


WORDS = [
    Word(
        r"^torchrun|^Trains",
        r"^jaxpar launch|^Trains",
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
        r"x\.mean|TensorDataset\(|get_default_dtype",
        r"x\.mean|TensorDataset\(",
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
        r"manual_seed",
        r"torch_init",
        "torch has one generator for all. Here a seed is an argument, and `torch_init` draws torch's own "
        "first weights from it: [random](random.md).",
    ),
    Word(
        r"= DistributedDataParallel",
        r"= jaxpar\.DistributedDataParallel",
        "Rank 0's weights go to all ranks, and each step takes the mean of all gradients: "
        "[DistributedDataParallel](distributed_data_parallel.md). In one process: "
        "[DataParallel](data_parallel.md).",
    ),
    Word(
        r"CrossEntropyLoss",
        r"cross_entropy\(",
        "The loss is a function of the module and a batch: [losses](losses.md).",
    ),
    Word(
        r"^scheduler",
        r"^scheduler",
        "torch's schedules, stepped once an epoch or once a batch; saved with the rest: "
        "[lr_scheduler](lr_scheduler.md).",
    ),
    Word(
        r"optim\.SGD",
        r"optim\.sgd",
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
        r"zero_grad|backward|optimizer\.step|= criterion\(|net\.train|detach|def train|= train\(",
        r"train_step|step\(x, y\)|def train|= train\(",
        "Forward, loss, backward and update are one compiled program. There is nothing to zero, and nothing "
        "waits until a number is read: [train_step](train_step.md).",
    ),
    Word(
        r"net\.eval|no_grad|argmax|def test|= test\(",
        r"eval_step|evaluate\(|def test|= test\(",
        "A compiled program with the module in evaluation mode; `net` itself keeps its mode: "
        "[eval_step](train_step.md#evaluation).",
    ),
    Word(
        r"torch\.(save|load)|state_dict|os\.|saved|state = ",
        r"[cC]heckpointer|state = ",
        "All of a step or nothing of it, every byte checked, while training goes on. All ranks call it: "
        "[Checkpointer](checkpointer.md).",
    ),
    Word(
        r"torch\.stack",
        r"jnp\.stack",
        "Losses stay on the device until here, so no step waits: [progress](progress.md).",
    ),
]
"""A line belongs to the first word that it has."""

HEAD = """\
# A torch training script, line by line

The script that every torch user has written, and beside it the same script with jaxpar. From the same seed
both print the same lines, to the last digit (a test runs them). Below each part stands every line that
differs, what it becomes, and the page that says more. Printed by `benchmarks/line_by_line.py` from the two
files in `docs/line_by_line`.
"""


def page(torch: str, port: str) -> str:
    """The whole page, of the text of both scripts.

    Raises:
      ValueError: a part is in one of them only, or a line that differs has none of WORDS.
    """
    theirs, ours = parts(torch), parts(port)
    if theirs.keys() != ours.keys():
        raise ValueError(f"line_by_line: parts of one script only: {sorted(theirs.keys() ^ ours.keys())}.")
    same = lines(torch) & lines(port)
    return "\n".join([HEAD, *(section(name, theirs[name], ours[name], same) for name in theirs)])


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


def section(name: str, torch: str, port: str, same: set[str]) -> str:
    title = name if " " in name else f"`{name}`"
    if torch == port:
        return f"## {title}\n\nThe same in both.\n\n```py\n{torch}\n```\n"
    pair = (
        "<table>\n<tr><th>torch</th><th>jaxpar</th></tr>\n<tr><td>\n\n"
        f"```py\n{torch}\n```\n\n</td><td>\n\n```py\n{port}\n```\n\n</td></tr>\n</table>"
    )
    return f"## {title}\n\n{pair}\n\n{explained(torch, port, same)}\n"


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
    parser.add_argument("torch", type=Path, nargs="?", default=SCRIPTS / "torch_script.py")
    parser.add_argument("port", type=Path, nargs="?", default=SCRIPTS / "jaxpar_script.py")
    args = parser.parse_args()
    print(page(args.torch.read_text(), args.port.read_text()), end="")


if __name__ == "__main__":
    main()
