"""What mkdocs does for the site beyond Markdown.

* A link out of ``docs/``, such as ``../examples/x.toml``, leads to a page with that file.
* README, CONTRIBUTING and the changelog are pages of the site; README is its start.
* A link to a folder of ``docs/`` leads to its ``index.md``.
* ``<!-- commands -->`` becomes the reference of the command line.
* A ``mermaid`` block becomes a picture that is drawn here: no script is fetched.
* Formulas become MathML, which browsers show without a script.
* SVG pictures made for the site are part of their page, so they follow its light or dark colours.
"""

from __future__ import annotations

import html as escapes
import json
import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import dirname, normpath, relpath
from typing import Any

import flowchart
import sequence
from commands import reference
from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FILES = "files"  # where files from outside docs/ have their pages
SHOWN = {  # pages of the repository that the site has, too
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}

LINK = re.compile(r"\]\((?P<to>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
CODE = re.compile(r"(^```.*?^```$|`[^`\n]*`)", re.DOTALL | re.MULTILINE)
MERMAID = re.compile(r"^```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PICTURE = re.compile(r'<img alt="(?P<alt>[^"]*)" src="(?P<src>[^"]*pictures/[^"]+\.svg)"\s*/?>')
FORMULA = re.compile(r'<(?P<tag>span|div) class="arithmatex">(?P<tex>.*?)</(?P=tag)>', re.DOTALL)
FETCHED = re.compile(r'(?:\bsrc|srcset|<link[^>]*href|url\()\s*=?\s*["\']?(?:https?:)?//[^"\' >]+')
ROLE = re.compile(r":(?:class|func|meth|mod|attr):<code>([^<]*)</code>")


def on_files(files: Files, config: Any) -> Files:
    """Pages for the files outside ``docs/`` to which a page has a link."""
    for name, page in SHOWN.items():
        if (ROOT / name).exists():
            files.append(_made(config, page, (ROOT / name).read_text(encoding="utf-8")))
    for path in sorted(set(_outside(files))):
        text = (ROOT / path).read_text(encoding="utf-8")
        if path.endswith(".ipynb"):
            files.append(_made(config, f"{FILES}/{path}.md", f"# {path}\n\n{_notebook(text)}"))
            continue
        kind = {"toml": "toml", "py": "python"}.get(path.rpartition(".")[2], "text")
        files.append(_made(config, f"{FILES}/{path}.md", f"# {path}\n\n```{kind}\n{text}```\n"))
    return files


def _notebook(text: str) -> str:
    """The cells of a notebook as Markdown, without what they print."""
    return "\n\n".join(
        "".join(cell["source"]) if cell["cell_type"] == "markdown" else _code(cell["source"])
        for cell in json.loads(text)["cells"]
    )


def _code(source: list[str] | str) -> str:
    return f"```python\n{''.join(source)}\n```"


def _made(config: Any, name: str, text: str) -> File:
    return File.generated(config, name, content=text, inclusion=InclusionLevel.NOT_IN_NAV)


def _outside(files: Files) -> Iterator[str]:
    """Paths, from the root of the repository, of files outside ``docs/`` that pages name."""
    for file in files.documentation_pages():
        for found in LINK.finditer(CODE.sub("", file.content_string)):
            path = _from_root(file.src_uri, found["to"])
            if path and not path.startswith("docs/") and path not in SHOWN:
                if not (ROOT / path).is_file():
                    continue  # mkdocs complains
                yield path


def _from_root(page: str, to: str) -> str | None:
    """The path that a link means, from the root of the repository; None for an address."""
    if re.match(r"[a-z]+:", to):
        return None
    place = "" if page in SHOWN.values() else "docs/" + dirname(page)
    return normpath(f"{place}/{to}") if place else normpath(to)


def _picture(chart: str) -> str:
    return sequence.drawn(chart) if chart.startswith("sequenceDiagram") else flowchart.drawn(chart)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page with its links inside the site, its commands and its pictures."""
    uri = page.file.src_uri
    if "<!-- commands -->" in markdown:
        markdown = markdown.replace("<!-- commands -->", reference())
    markdown = MERMAID.sub(lambda found: _picture(found[1]), markdown)
    pieces = CODE.split(markdown)  # every second piece is code

    def led(found: re.Match[str]) -> str:
        path = _from_root(uri, found["to"])
        return f"]({_target(uri, path, found['to'])}{found['anchor'] or ''})"

    return "".join(
        piece if number % 2 else LINK.sub(led, piece) for number, piece in enumerate(pieces)
    )


def _target(page: str, path: str | None, to: str) -> str:
    """Where a link leads in the site."""
    if path is None:
        return to
    if path in SHOWN:
        inside = SHOWN[path]
    elif path.startswith("docs/"):
        inside = path.removeprefix("docs/")
        if (DOCS / inside).is_dir():
            inside += "/index.md"
    elif (ROOT / path).is_file():
        inside = f"{FILES}/{path}.md"
    else:
        return to  # mkdocs complains
    return relpath(inside, dirname(page) or ".")


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Formulas, pictures, and the markup of docstrings that Markdown does not know."""
    text = html
    text = FORMULA.sub(_formula, text)
    text = ROLE.sub(lambda found: f"<code>{found[1].lstrip('~')}</code>", text)
    place = dirname(page.file.src_uri)

    def picture(found: re.Match[str]) -> str:
        svg = (DOCS / normpath(f"{place}/{found['src']}")).read_text(encoding="utf-8")
        return f'<span class="picture" role="img" aria-label="{found["alt"]}">{svg}</span>'

    return PICTURE.sub(picture, text)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Refuse a page that would fetch anything from elsewhere.

    Raises:
        PluginError: if it does.
    """
    if found := FETCHED.search(output):
        raise PluginError(f"{page.file.src_uri}: it would fetch {found[0]}")
    return output


def _formula(found: re.Match[str]) -> str:
    tex = escapes.unescape(found["tex"])
    display = "block" if found["tag"] == "div" else "inline"
    return convert(tex.strip()[2:-2], display=display)  # without \( \) or \[ \]
