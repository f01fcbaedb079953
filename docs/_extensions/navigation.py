"""The sidebar, made of the pages' own links.

What the entrance links stands under its headings, every other page below a page that links it.
So no list of pages is kept twice, and on GitHub no page shows markup that only Sphinx reads.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"\]\((\w[\w/-]*)\.md(?:#[\w-]*)?\)")
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
ENTRANCE = "index"
API = "api/index"
"""Made when the site is built, so no page can link it; it stands last."""


def setup(app: Any) -> dict[str, bool]:
    app.connect("config-inited", _read)
    app.connect("source-read", _add)
    return {"parallel_read_safe": True}


def _read(app: Any, config: Any) -> None:
    config.add(
        "sidebar", tree(guide(Path(app.srcdir))), "env", dict
    )  # Sphinx reads the pages again when it changes


def _add(app: Any, page: str, source: list[str]) -> None:
    for caption, below in app.config.sidebar.get(page, {}).items():
        source[0] += toctree(caption, below)


def guide(docs: Path) -> dict[str, str]:
    """The texts of the written and printed pages by name: `scatter`, `tables/ports`."""
    paths = [*docs.glob("*.md"), *docs.glob("tables/*.md")]
    return {path.relative_to(docs).with_suffix("").as_posix(): path.read_text() for path in sorted(paths)}


def tree(pages: dict[str, str]) -> dict[str, dict[str, list[str]]]:
    """For each page what stands below it in the sidebar, by caption. Breadth first: each page stands once."""
    found: dict[str, dict[str, list[str]]] = {}
    seen = {ENTRANCE}

    def below(page: str, sections: dict[str, str]) -> list[list[str]]:
        each = []
        for caption, text in sections.items():
            each.append([link for link in dict.fromkeys(links(text)) if link in pages and link not in seen])
            seen.update(each[-1])
            if each[-1]:
                found.setdefault(page, {})[caption] = each[-1]
        return each

    # The first section's pages show the way to all others, so what they link stands there at last.
    first, *others = below(ENTRANCE, parts(pages[ENTRANCE]))
    todo = [page for each in (*others, first) for page in each]
    for page in todo:
        todo += below(page, {"": pages[page]})[0]
    *_, last = found[ENTRANCE].values()
    last.append(API)
    return found


def parts(text: str) -> dict[str, str]:
    """The entrance's sections by their headings, without tables, which lead across the sidebar's order."""
    _, *rest = re.split(r"^## (.*)\n", re.sub(r"^\|.*$", "", text, flags=re.M), flags=re.M)
    return dict(zip(rest[::2], rest[1::2], strict=True))


def links(text: str) -> list[str]:
    return LINK.findall(FENCE.sub("", text))


def toctree(caption: str, pages: list[str]) -> str:
    head = f":caption: {caption}\n" if caption else ""
    return f"\n\n```{{toctree}}\n:hidden:\n{head}\n" + "\n".join(pages) + "\n```\n"
