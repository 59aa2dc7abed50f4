"""Hooks of mkdocs: README, CONTRIBUTING and SECURITY become pages, the folders become sections, and the site must load nothing from other hosts.

A link to a file that is no page (code, an example) becomes plain text, because the site does not contain the file.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
TOP = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
"""Pages outside of the folder `docs`, and their places on the site."""
SECTIONS = ["tutorial", "guides", "reference", "concepts", "internals", "decisions"]
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def on_config(config: MkDocsConfig) -> None:
    """Every page is in the menu, in the order of `SECTIONS`."""
    docs = Path(config.docs_dir)
    nav: list[Any] = [{"Home": "index.md"}]
    for section in SECTIONS:
        pages = sorted(
            (path.relative_to(docs).as_posix() for path in (docs / section).rglob("*.md")), key=lambda page: (not page.endswith("README.md"), page)
        )
        if pages:
            nav.append({section.capitalize(): pages})
    config.nav = [*nav, {"Glossary": "glossary.md"}, {"Contributing": ["contributing.md", "security.md"]}]


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File

    for source, page in TOP.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    source = next((source for source, name in TOP.items() if name == page.file.src_uri), f"docs/{page.file.src_uri}")
    known = {f"docs/{file.src_uri}" for file in files} | set(TOP)
    return site_links(markdown, source, page.file.src_uri, known)


def site_links(markdown: str, source: str, page: str, known: set[str]) -> str:
    """The page with links that hold on the site. `source`: its path in the repository; `page`: its path on the site; `known`: paths in the
    repository that the site has."""

    def link(match: re.Match[str]) -> str:
        text, target = match.groups()
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target) or not path:
            return match[0]
        found = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        found = next((each for each in (found, f"{found}/README.md") if each in known), "")
        if not found:
            return text
        place = posixpath.relpath(TOP.get(found, found.removeprefix("docs/")), posixpath.dirname(page) or ".")
        return f"[{text}]({place}{'#' + anchor if anchor else ''})"

    parts = re.split(r"(^```.*?^```$|`[^`\n]*`(?!\]))", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if number % 2 else LINK.sub(link, part) for number, part in enumerate(parts))


class _Loads(HTMLParser):
    """Collects what a page loads from other hosts: scripts, styles, images, frames. Links do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if tag != "a" and (tag != "link" or named.get("rel") != "canonical"):
            self.found += [value for name in ("src", "href", "srcset") if (value := named.get(name)) and re.match(r"(?:https?:)?//", value)]


def loads(page: str) -> list[str]:
    """Addresses on other hosts that an HTML page loads."""
    parser = _Loads()
    parser.feed(page)
    return parser.found


def _site_loads(site: Path) -> Iterator[str]:
    for path in sorted(site.rglob("*.html")):
        yield from (f"{path.relative_to(site)}: {address}" for address in loads(path.read_text()))
    for path in sorted(site.rglob("*.css")):
        yield from (f"{path.relative_to(site)}: {address}" for address in re.findall(r"url\(['\"]?((?:https?:)?//[^)'\"]+)", path.read_text()))


def on_post_build(config: MkDocsConfig) -> None:
    from mkdocs.exceptions import PluginError

    if found := list(_site_loads(Path(config.site_dir))):
        raise PluginError("the site loads from other hosts:\n" + "\n".join(found))
