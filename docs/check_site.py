"""Looks at a built site: nothing is loaded from elsewhere, every link within it leads somewhere. See `make docs`."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "video": "src"}
LINKS_THAT_LOAD = {"stylesheet", "icon", "preload", "modulepreload", "prefetch", "preconnect", "dns-prefetch"}


class Page(HTMLParser):
    """What a page loads, where it links to, and what can be linked to on it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect one element."""
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        target = given.get(LOADED.get(tag, ""), "")
        if target and (tag != "link" or set(given.get("rel", "").split()) & LINKS_THAT_LOAD):
            self.loads.append(target)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])


def problems(site: Path) -> list[str]:
    """What is wrong with a site, one line each."""
    pages = {file.resolve(): Page(file.read_text("utf-8")) for file in sorted(site.rglob("*.html"))}
    found = [] if len(pages) > 20 else [f"{site} has {len(pages)} pages, expected more than 20"]
    for file, page in pages.items():
        if file.name == "404.html":  # its links are those of the server's root
            continue
        found += [f"{file.name} loads {target}" for target in page.loads if urlsplit(target).netloc]
        for target in [*page.links, *page.loads]:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            wanted = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            wanted = wanted / "index.html" if wanted.is_dir() else wanted
            if not wanted.exists():
                found.append(f"{file.name} links to {target}, which does not exist")
            elif parts.fragment and wanted in pages and unquote(parts.fragment) not in pages[wanted].ids:
                found.append(f"{file.name} links to {target}, a place that the page does not have")
    return found


if __name__ == "__main__":
    wrong = [f"{folder}: {line}" for folder in sys.argv[1:] for line in problems(Path(folder))]
    sys.stderr.write("".join(f"{line}\n" for line in wrong))
    sys.exit(bool(wrong))
