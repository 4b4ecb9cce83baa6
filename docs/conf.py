# SPDX-License-Identifier: Apache-2.0
"""Settings of the documentation site, which `make docs` builds with Sphinx, MyST and Furo.

Pages are Markdown that reads well without Sphinx, too. Two things are added when a page is read:

- The navigation. The lists of links on index.md and on the pages that it links to are the table of contents.
- What is generated from the code: a block ``{public-names} MODULE`` becomes the API reference of that module,
  ``{exceptions-by-call}`` a table, and ``{command-help} COMMAND`` the help of a command (tools/api_reference.py).
"""

import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent / "tools"), str(DOCS.parent / "src")]

import api_reference  # noqa: E402
from docutils import nodes  # noqa: E402
from sphinx.addnodes import pending_xref  # noqa: E402
from sphinx.application import Sphinx  # noqa: E402
from sphinx.errors import ExtensionError  # noqa: E402

from kcodec import __version__  # noqa: E402

project = "kcodec"
author = "The kcodec authors"
copyright = "The kcodec authors, Apache-2.0"  # noqa: A001
version = release = __version__
extensions = ["myst_parser"]
root_doc = "index"
source_suffix = {".md": "markdown"}
exclude_patterns = ["images/README.md"]
nitpicky = True
python_maximum_signature_line_length = 80
add_module_names = True
toc_object_entries_show_parents = "hide"

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4

html_theme = "furo"
html_title = f"kcodec {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_use_index = True
pygments_style = "default"
pygments_dark_style = "monokai"

GENERATED = re.compile(r"^```\{(public-names|exceptions-by-call|command-help)\} ?([\w.]*)\n```$", re.MULTILINE)
SECTION = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
OUTSIDE = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)#]*)(#[^)]*)?\)")
DIAGRAM = re.compile(r"^```mermaid\n.*?^```\n", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"^- \[[^\]]+\]\(([\w/-]+)\.md\)", re.MULTILINE)


def read_source(app: Sphinx, name: str, content: list[str]) -> None:
    """Add the reference of modules and the navigation to a page."""
    page = Path(app.env.doc2path(name))
    text = OUTSIDE.sub(lambda found: link_outside(page, found), DIAGRAM.sub("", content[0]))
    text = GENERATED.sub(generated, text)
    if name == root_doc:
        for caption, section in SECTION.findall(text):
            text += toctree(LINK.findall(section), caption)
    elif pages := LINK.findall(text) if name.endswith("/index") else []:
        text += toctree(pages)
    content[0] = text


def generated(found: re.Match[str]) -> str:
    """Return what stands in place of a block that is generated from the code."""
    if found[1] == "public-names":
        return f"`````{{eval-rst}}\n{api_reference.reference(found[2])}\n`````"
    if found[1] == "command-help":
        return f"```text\n{api_reference.command_help(found[2])}```"
    return api_reference.exceptions_by_call()


def link_outside(page: Path, found: re.Match[str]) -> str:
    """Return a link of a page as the site has it. Files of the checkout become downloads; of its pages and folders
    the path is shown instead.
    """
    target = (page.parent / found[2]).resolve()
    if DOCS in target.parents or (target.is_file() and target.suffix != ".md"):
        return found[0]
    if not target.exists():
        raise ExtensionError(f"{page}: {found[2]} does not exist")
    return f"{found[1]} (`{target.relative_to(DOCS.parent)}` of the checkout)"


def toctree(pages: list[str], caption: str = "") -> str:
    """Return a hidden table of contents of these pages."""
    options = f":caption: {caption}\n" if caption else ""
    return f"\n```{{toctree}}\n:hidden:\n{options}\n" + "\n".join(pages) + "\n```\n" if pages else ""


def link_names(app: Sphinx, doctree: nodes.document) -> None:
    """Point each type of a signature, such as `TopicPartition`, to the entry of that name, in its own module first."""
    targets = api_reference.targets()
    for node in doctree.findall(pending_xref):
        if node.get("refdomain") == "py" and node["reftarget"] not in targets:
            node["refspecific"] = False
            name = node["reftarget"].rpartition(".")[2]
            here = f"{node.get('py:module')}.{name}"
            others = sorted((one for one in targets if one.rpartition(".")[2] == name), key=len)
            node["reftarget"] = here if here in targets else others[0] if others else node["reftarget"]
            if node["reftarget"] not in targets:
                node.replace_self(node.children)  # a type of Python, Arrow or another package


def setup(app: Sphinx) -> None:
    """Connect what happens when a page is read."""
    app.connect("source-read", read_source)
    app.connect("doctree-read", link_names)
