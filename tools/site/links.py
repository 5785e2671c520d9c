"""Check a folder of pages: internal links resolve, and nothing is loaded from another host."""

from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

# What a browser loads with a page, as opposed to links that a reader may follow.
FETCHED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("video", "src"), ("link", "href")}


class Page(HTMLParser):
    """The ids of a page, and its (tag, attribute, address) triples."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.addresses = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("id", "name") and value:
                self.ids.add(value)
            if name in ("href", "src") and value:
                self.addresses.append((tag, name, value))


def problems(folder):
    """The problems found, one line each."""
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        where = path.relative_to(folder.resolve())
        for tag, name, address in page.addresses:
            parts = urlsplit(address)
            if parts.scheme == "data":
                continue
            if parts.scheme or parts.netloc:
                if (tag, name) in FETCHED:
                    found.append(f"{where} fetches {address}")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                found.append(f"{where} links {address}, and there is no such file")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                found.append(f"{where} links {address}, and that page has no such place")
    return found
