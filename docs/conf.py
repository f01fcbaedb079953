"""The site: `make docs` builds it into docs/_build. The pages are the Markdown files beside this one.

What Sphinx does not bring is in `_extensions`: a sidebar made of the pages' own links, pages of the API from
the tables of contents (`__init__.pyi`), docstrings in Markdown, and llms.txt with every page as text.
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_extensions"), str(HERE.parent)]
os.environ["JAX_PLATFORMS"] = "cpu"  # docstrings are read by importing, and a GPU would be taken for it

import jaxpar  # noqa: E402

project = "jaxpar"
author = "the jaxpar authors"
version = release = jaxpar.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "docstrings",
    "api",
    "navigation",
    "llms",
    "layers",
]
exclude_patterns = ["_build"]
suppress_warnings: list[str] = []  # a warning fails the build

myst_heading_anchors = 4  # GitHub's own anchors, so that a link is right here and there
myst_enable_extensions = ["html_image"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_ivar = True
copybutton_prompt_text = ">>> "

html_theme = "sphinx_book_theme"
html_title = "jaxpar"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_theme_options = {
    "use_download_button": False,
    "use_fullscreen_button": False,
    "navbar_persistent": [],  # the search of the sidebar is enough
    "home_page_in_toc": True,
    "show_navbar_depth": 1,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
