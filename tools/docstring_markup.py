# SPDX-License-Identifier: Apache-2.0
"""Conversion of docstrings to reStructuredText. The docstrings of kcodec are plain text, in which reStructuredText
would find unintended markup.

`as_rst` escapes everything except for code in backticks, examples, lists and definitions.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Collection, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEFINITION = re.compile(r"(?P<names>\*{0,2}\w+(?:, \*{0,2}\w+)*):(?P<gap>\s+)(?P<text>\S.*)")
HEADINGS = {
    "args",
    "arguments",
    "parameters",
    "options",
    "attributes",
    "fields",
    "raises",
    "returns",
    "yields",
    "examples",
}
MARKED = re.compile(r"``([^`]+)``|`([^`]+)`")


def as_rst(text: str, names: tuple[str, ...] = (), targets: Collection[str] = ()) -> list[str]:
    """Return a docstring as lines of reStructuredText. names: the parameters or attributes that it may define.
    targets: full names to which code in backticks links.

    Docstrings are plain text with code in backticks, examples that are indented or begin with ``>>>``, lists with
    ``- ``, and definitions ``name: text`` of parameters, which become a list of definitions.
    """
    lines: list[str] = []
    for block in blocks(text):
        lines += block_as_rst(block, names, targets)
    return lines


def blocks(text: str) -> Iterator[list[str]]:
    """Yield the lines of each paragraph; an indented block keeps its blank lines."""
    block: list[str] = []
    for line in text.splitlines():
        if line.strip():
            if block and not block[-1].strip():
                is_code = line.startswith("    ") and all(one.startswith("    ") or not one.strip() for one in block)
                if not is_code:
                    yield block[: len("".join("x" if one.strip() else " " for one in block).rstrip())]
                    block = []
            block.append(line)
        elif block:
            block.append(line)
    if block:
        yield [line for line in block if line.strip()] if not block[0].startswith("    ") else block


def block_as_rst(block: list[str], names: tuple[str, ...], targets: Collection[str]) -> list[str]:
    """Return one block of a docstring."""
    first = block[0]
    if first.lstrip().startswith(">>>"):
        return [
            ".. code-block:: pycon",
            "",
            *(f"   {line}" for line in textwrap.dedent("\n".join(block)).splitlines()),
            "",
        ]
    if all(line.startswith("    ") or not line.strip() for line in block):
        code = textwrap.dedent("\n".join(block))
        return [f".. code-block:: {language(code)}", "", *(f"   {line}" for line in code.splitlines()), ""]
    if first.rstrip().endswith(":") and first.strip(": ").lower() in HEADINGS and len(block) > 1:
        inner = inspect.cleandoc("\n".join(block[1:])).splitlines()
        any_name = tuple(re.findall(r"^(\w+(?:, \w+)*):\s", "\n".join(inner), re.MULTILINE))
        return [
            f"**{first.strip(': ').capitalize()}**",
            "",
            *block_as_rst(inner, tuple(", ".join(any_name).split(", ")), targets),
        ]
    if first.startswith("- "):
        return list_as_rst(block, targets)
    paragraph: list[str] = []
    lines: list[str] = []
    open_field = False
    for position, line in enumerate(block):
        found = DEFINITION.match(line)
        defined = [one.strip("* ") for one in found["names"].split(",")] if found else []
        if found and names and set(defined) <= set(names):
            if paragraph:
                lines += [*paragraph, ""]
                paragraph = []
            marks = ", ".join(f"``{one}``" for one in defined)
            lines += [marks, f"    {inline(found['text'], targets)}"]
            open_field = True
        elif line.startswith("- ") and not open_field:
            return [*lines, *paragraph, "", *list_as_rst(block[position:], targets)]
        elif open_field:
            lines.append(f"    {inline(line.strip(), targets)}")
        elif line.startswith("    "):
            code = textwrap.dedent("\n".join(block[position:]))
            body = (f"   {one}" for one in code.splitlines())
            return [*lines, *paragraph, "", f".. code-block:: {language(code)}", "", *body, ""]
        else:
            paragraph.append(inline(line.strip(), targets))
    return [*lines, *paragraph, ""]


def list_as_rst(block: list[str], targets: Collection[str]) -> list[str]:
    """Return a list whose items may have several lines."""
    lines = []
    for line in block:
        is_item = line.startswith("- ")
        lines.append(f"- {inline(line[2:], targets)}" if is_item else f"  {inline(line.strip(), targets)}")
    return [*lines, ""]


def language(code: str) -> str:
    """Return "python" for code that compiles, else "text"."""
    try:
        ast.parse(code)
    except SyntaxError:
        return "text"
    return "python" if re.search(r"[=(]", code) else "text"


def inline(text: str, targets: Collection[str]) -> str:
    """Return a line with code marked, links to public names and to pages, and everything else escaped."""
    parts = []
    end = 0
    for found in MARKED.finditer(text):
        parts += [escaped(text[end : found.start()]), marked((found[1] or found[2]).strip(), targets)]
        end = found.end()
    parts.append(escaped(text[end:]))
    line = "".join(parts)
    # Markup must end at a space or punctuation: an escaped space separates it from a letter.
    return re.sub(r"(?<=`)(?=[A-Za-z0-9])(?<=\S`)(?!`)", "\\\\ ", line) if re.search(r"\w``\w", line) else line


def escaped(text: str) -> str:
    """Return plain text in which nothing is markup; names of pages become links."""
    plain = re.sub(r"([*|\\`])", r"\\\1", text)
    plain = re.sub(r"_(?=\W|$)", r"\\_", plain)
    return re.sub(r"\bdocs/([\w/-]+)\.md", page_link, plain)


def page_link(found: re.Match[str]) -> str:
    """Return a link to a page of the site, if there is such a page."""
    return f":doc:`/{found[1]}`" if (ROOT / "docs" / f"{found[1]}.md").exists() else found[0]


def marked(code: str, targets: Collection[str]) -> str:
    """Return code; a public name links to its entry."""
    name = code.removesuffix("()")
    target = next((one for one in (name, f"kcodec.{name}") if one in targets), None)
    if target:
        return f":py:obj:`{name} <{target}>`"
    return f"``{code}``"
