"""The site: what its extensions make of pages and docstrings. `make docs` builds it and checks every link."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"


def extension(name: str):
    """A module of docs/_extensions."""
    spec = importlib.util.spec_from_file_location(name, DOCS / "_extensions" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


docstrings, navigation, llms = extension("docstrings"), extension("navigation"), extension("llms")
PAGES = navigation.guide(DOCS)

# ------------------------------------------------------------------------------------- the sidebar


def standing(tree: dict[str, dict[str, list[str]]]) -> list[str]:
    return [page for below in tree.values() for pages in below.values() for page in pages]


def test_every_page_stands_once_in_the_sidebar():
    found = standing(navigation.tree(PAGES))
    assert sorted(found) == sorted((PAGES.keys() - {"index"}) | {"api/index"})


def test_a_page_stands_where_it_is_linked_and_below_the_first_section_last():
    pages = {
        "index": "# A\n[no](d.md)\n## One\n[b](b.md)\n| [d](d.md) |\n```\n[e](e.md)\n```\n"
        "## Two\n[c](c.md#there)\n",
        "b": "[c](c.md) and [d](d.md)",
        "c": "[d](d.md)",
        "d": "",
        "e": "nobody links it",
    }
    found = navigation.tree(pages)
    assert found == {"index": {"One": ["b"], "Two": ["c", "api/index"]}, "c": {"": ["d"]}}
    assert "e" not in standing(found)  # Sphinx says so: it is in no toctree


# ------------------------------------------------------------------------------ what people look for

TOPICS = {
    "a torch script, line by line": ("line_by_line", "torch.save"),
    "pmap": ("from_jax", "jax.pmap"),
    "Linen": ("from_jax", "TrainState"),
    "nnx.jit": ("from_jax", "nnx.jit"),
    "virtual devices": ("virtual_devices", "virtual_devices"),
    "all GPUs of a host": ("data_parallel", "DataParallel"),
    "several hosts": ("launch", "--nnodes"),
    "scheduler.step() once an epoch": ("lr_scheduler", "scheduler.step()"),
    "a rate that can be set": ("optim", r"optimizer\.lr|hyperparams"),
    "a rate that falls on a plateau": ("lr_scheduler", "ReduceLROnPlateau"),
    "parameter groups": ("optim", "param_groups"),
    "clipping": ("optim", "clip_grad_norm"),
    "mixed precision": ("train_step", "bfloat16"),
    "accumulation": ("train_step", "accumulate"),
    "a GAN": ("train_step", "discriminator"),
    "evaluation": ("train_step", "eval_step"),
    "the best checkpoint": ("early_stopping", "best"),
    "early stopping": ("early_stopping", "patience"),
    "resuming": ("checkpointer", "restore"),
    "W&B": ("logging", "wandb"),
    "TensorBoard": ("logging", "tensorboard"),
    "a progress bar": ("progress", "progress"),
    "averaged weights": ("swa_utils", "AveragedModel"),
    "data sets of the hub": ("data", "(?i)hub"),
    "a tokenizer": ("data", "(?i)tokeniz"),
    "transforms": ("transforms", "RandomCrop"),
    "profiling": ("profile", "Perfetto"),
    "the best steps": ("checkpointer", "save_best"),
    "objects between ranks": ("distributed", "all_gather_object"),
    "groups of ranks": ("distributed", "new_group"),
    "shuffling and workers": ("data", "num_workers"),
    "a seed": ("random", "manual_seed"),
    "SyncBatchNorm": ("nn_norms", "SyncBatchNorm"),
    "torch's weights": ("weights", "load_torch"),
    "is my port right": ("compare", "compare"),
    "a Flax file of a torch model": ("port", "jaxpar port"),
    "what a port looks like": ("side_by_side", "resnet18"),
    "a torch optimizer and its groups": ("port", r"port\.optimizer"),
    "out of memory": ("estimate", "memory"),
    "a job that hangs": ("multi-gpu", "hang"),
    "collectives": ("distributed", "all_reduce"),
    "an error": ("errors", "BatchError"),
}
"""What people look for, the page that has it, and a word that the page must have."""


def clicks(pages: dict[str, str]) -> dict[str, int]:
    """How many links lead from the entrance to each page, at least."""
    found, todo = {"index": 0}, ["index"]
    for page in todo:
        for link in navigation.LINK.findall(pages[page]):
            if link not in found:
                found[link] = found[page] + 1
                todo.append(link)
    return found


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_is_found_in_two_clicks(topic):
    page, word = TOPICS[topic]
    assert clicks(PAGES)[page] <= 2
    assert re.search(word, PAGES[page])


def test_every_page_is_found_in_two_clicks():
    assert max(clicks(PAGES).values()) <= 2


def test_a_planted_page_far_away_is_seen():
    assert clicks({"index": "[a](a.md)", "a": "[b](b.md#c)", "b": "[c](c.md)", "c": ""})["c"] == 3


# --------------------------------------------------------------------------------- docstrings

CASES = {
    "code": ("`x[0]` and `y`.", "``x[0]`` and ``y``."),
    "code over two lines": ("`f(x,\n  y)`", "``f(x,\n  y)``"),
    "code with a letter after it": ("`Device`s", "``Device``\\ s"),
    "what is no markup": ("max|c - r|, *args, name_", "max\\|c - r\\|, \\*args, name\\_"),
    "a name": ("a_b", "a_b"),
    "a list": ("* one `x`\n* two", "* one ``x``\n* two"),
    "a page": ("(docs/semantics.md row 4)", "(:doc:`semantics </semantics>` row 4)"),
    "a page that is not there": ("docs/nothing.md", "docs/nothing.md"),
    "a fence": (
        "Say:\n\n```python\nx = 1\n\ny = `z`\n```\n",
        "Say:\n\n.. code-block:: python\n\n   x = 1\n\n   y = `z`\n\n",
    ),
    "a fence in a section": ("  ```\n  x\n  ```\n", "  .. code-block:: text\n\n     x\n\n"),
    "a table": (
        "  | a | b |\n  |---|---|\n  | `x` | |",
        "  .. list-table::\n     :header-rows: 1\n  \n     * - a\n       - b\n     * - ``x``\n       - ",
    ),
    "a norm, which is no table": ("|input - target|; 0\nwhere equal", "\\|input - target\\|; 0\nwhere equal"),
}


@pytest.mark.parametrize("case", CASES)
def test_markdown_becomes_restructured_text(case):
    markdown, expected = CASES[case]
    assert docstrings.restructured(markdown) == expected


# ------------------------------------------------------------------------------ pages as text


def test_llms_txt_lists_every_page_once_with_its_title_and_summary():
    listed = re.findall(r"^- \[(.+)\]\(([\w/-]+)\.md\): (.+)$", llms.index(PAGES), re.M)
    assert sorted(name for _, name, _ in listed) == sorted(PAGES.keys() - {"index"})
    for title, name, summary in listed:
        assert PAGES[name].startswith(f"# {title}\n")
        assert len(summary) > 20, name


def test_llms_txt_of_a_small_guide():
    pages = {
        "index": "# Guide\n\nIt trains.\n\n## One\n\n[b](b.md)\n",
        "b": "# B\n\n```python\nx\n```\n\nSee [the\nC](c.md).\n",
        "c": "# C\n\n| a |\n|---|\n\nLast.\n",
    }
    expected = "# jaxpar\n\n> It trains.\n\n## One\n\n- [B](b.md): See the C.\n- [C](c.md): Last.\n"
    assert llms.index(pages) == expected


def test_pages_are_copied_as_text(tmp_path):
    llms.write(DOCS, tmp_path)
    assert (tmp_path / "scatter.md").read_text() == PAGES["scatter"]
    assert (tmp_path / "llms.txt").read_text() == llms.index(PAGES)


# ------------------------------------------------------------------------------ pages of the API


@pytest.fixture(scope="module")
def api():
    pytest.importorskip("sphinx")
    return extension("api")


def test_every_public_name_has_an_entry(api):
    import jaxpar

    text = api.page("jaxpar", {})
    rooms = {
        "distributed",
        "distributions",
        "errors",
        "comm_hooks",
        "data",
        "nn",
        "optim",
        "random",
        "parity",
        "__version__",
    }
    for name in set(jaxpar.__all__) - rooms:
        assert f"\n## {name}\n" in text, name


def test_a_constant_has_its_own_text(api):
    text = api.page("jaxpar.comm_hooks", {"comm_hooks": "# comm_hooks"})
    assert (
        ".. py:data:: jaxpar.comm_hooks.noop\n\n   No reduction, to measure the cost of communication" in text
    )
    assert "The guide: [comm_hooks](../comm_hooks.md)" in text


def test_every_room_with_a_table_of_contents_has_a_page(api):
    package = DOCS.parent / "jaxpar"
    stubs = {".".join(path.parent.relative_to(DOCS.parent).parts) for path in package.rglob("__init__.pyi")}
    assert stubs <= set(api.rooms())
    assert {api.about(room, PAGES) for room in api.rooms()} <= PAGES.keys()


def test_a_room_belongs_to_the_page_of_its_name_or_to_that_of_the_room_around_it(api):
    rooms = ("jaxpar", "jaxpar.optim.lr_scheduler", "jaxpar.nn.functional", "jaxpar.parity")
    assert [api.about(room, PAGES) for room in rooms] == ["index", "lr_scheduler", "nn", "compare"]
