"""The guide as text: each page as Markdown next to its HTML, and llms.txt, which lists them.

llms.txt has the format of https://llmstxt.org: a title, a summary, and a list of links under each heading of
the entrance.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from navigation import ENTRANCE, LINK, guide, tree


def setup(app: Any) -> dict[str, bool]:
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True}


def _write(app: Any, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        write(Path(app.srcdir), Path(app.outdir))


def write(docs: Path, site: Path) -> None:
    """Copy every page of the guide to `site`, and write `site/llms.txt`."""
    pages = guide(docs)
    for name, text in pages.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / f"{name}.md").write_text(text)
    (site / "llms.txt").write_text(index(pages))


def index(pages: dict[str, str]) -> str:
    """The text of llms.txt for the guide's pages, in the sidebar's order."""
    sidebar = tree(pages)
    sections = [f"# jaxpar\n\n> {summary(pages[ENTRANCE])}\n"]
    for caption, names in sidebar[ENTRANCE].items():
        every = [page for name in names if name in pages for page in (name, *_below(name, sidebar))]
        rows = "\n".join(f"- [{title(pages[page])}]({page}.md): {summary(pages[page])}" for page in every)
        sections.append(f"## {caption}\n\n{rows}\n")
    return "\n".join(sections)


def _below(page: str, sidebar: dict[str, dict[str, list[str]]]) -> list[str]:
    children = [name for names in sidebar.get(page, {}).values() for name in names]
    return [name for child in children for name in (child, *_below(child, sidebar))]


def title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ")


def summary(text: str) -> str:
    """A page's first paragraph after its title, on one line and without links."""
    paragraphs = [part.strip() for part in text.split("\n\n")[1:]]
    prose = next((part for part in paragraphs if part and part[0] not in "#`|*<!"), "")
    return " ".join(LINK.sub("]", prose).replace("[", "").replace("]", "").split())
