"""The documentation site: `make docs` builds it in build/docs, with warnings as errors.

The pages are the Markdown files of the repository, unchanged; the folder of sources is the repository itself, so
that links are the same here and on a forge. README.md is the first page, and its table under "Documentation"
the navigation: a row without a link begins a group, and each link of another row is a page.
"""

import re
from pathlib import Path

from sphinx.application import Sphinx

project = "utracefs"
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = ["*.md", "docs/*.md", "examples/*/*.md"]
exclude_patterns = [".*", "build", "dist", "client", "daemon", "protocol", "tests", "**/.*"]
html_theme = "furo"
html_title = "utracefs"
html_copy_source = False
html_show_copyright = False
myst_heading_anchors = 4
suppress_warnings = [
    "ref.python",  # two classes of one name in types of signatures
    "misc.highlighting_failure",  # SQL with the braces of DuckDB; tests run the blocks
]


def groups(readme: str) -> dict[str, list[str]]:
    """The navigation: pages by group."""
    found: dict[str, list[str]] = {}
    table = readme.partition("\n## Documentation\n")[2]
    for first in re.findall(r"^\| *(.*?) *\|", table, re.MULTILINE):
        if links := re.findall(r"\]\(([^)#]+)\.md\)", first):
            found[next(reversed(found))] += links
        elif title := first.strip("* -"):
            found[title] = []
    return found


def add_navigation(app: Sphinx, name: str, source: list[str]) -> None:
    """Append it to the first page."""
    if name == root_doc:
        for title, pages in groups(source[0]).items():
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n" + "\n".join(pages) + "\n```\n"


def add_index(app: Sphinx, error: Exception | None) -> None:
    """index.html leads to the first page."""
    if error is None and app.builder.name == "html":
        page = f'<meta http-equiv="refresh" content="0; url={root_doc}.html">\n'
        Path(app.outdir, "index.html").write_text(page)


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_navigation)
    app.connect("build-finished", add_index)
