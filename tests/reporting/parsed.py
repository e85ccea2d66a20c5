"""A page of `summary --html`, read as a browser's parser would: its tables, its texts, and what it would fetch."""

from __future__ import annotations

from html.parser import HTMLParser

_VOID = {"meta", "link", "img"}
_FETCHING = {"src", "href", "action", "srcset", "data", "poster", "xlink:href"}


class Parsed(HTMLParser):
    """``tables`` by heading: rows of cells, the head first. ``bars`` are (chart, label, share of the width, figure)."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.bars: list[tuple[str, str, float, str]] = []
        self.columns: list[tuple[str, dict[str, float]]] = []
        self.fetched: list[str] = []
        self.inner: dict[str, str] = {}
        self.policy = ""
        self._open: list[str] = []
        self._heading = self._label = ""
        self._share = 0.0
        self._class = ""
        self.feed(page.decode())
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        self.fetched += [value or "" for name, value in attrs if name in _FETCHING]
        self._class = found.get("class") or ""
        if tag not in _VOID:
            self._open.append(tag)
        if tag == "meta" and found.get("http-equiv") == "Content-Security-Policy":
            self.policy = found["content"] or ""
        if tag == "h2":
            self._heading = ""
        if tag == "tr":
            self.tables.setdefault(self._heading, []).append([])
        if tag in ("td", "th"):
            self.tables[self._heading][-1].append("")
        if tag == "rect" and self._class == "fill" and (found["width"] or "").endswith("%"):
            self._share = float((found["width"] or "").removesuffix("%")) / 100
        elif tag == "rect" and self.columns and self._class in ("slowest", "fill", "gpu"):
            self.columns[-1][1][self._class] = float(found["height"] or "")
        if tag == "title" and "svg" in self._open:
            self.columns.append(("", {}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        inside = self._open[-1] if self._open else ""
        self.inner[inside] = self.inner.get(inside, "") + data
        if inside == "h2":
            self._heading += data
        elif inside in ("td", "button"):
            self.tables[self._heading][-1][-1] += data
        elif inside == "title" and "svg" in self._open:
            self.columns[-1] = (data, self.columns[-1][1])
        elif self._class == "label":
            self._label, self._class = data, ""
        elif self._class == "figure":
            self.bars.append((self._heading, self._label, self._share, data))
            self._class = ""
