"""Reads pages as browsers do."""

from __future__ import annotations

import html.parser
import json


class Page(html.parser.HTMLParser):
    """Checks that tags close in order and that nothing is loaded; keeps text and data."""

    def __init__(self, content):
        super().__init__()
        self.open, self.text, self.data, self.scripts, self.tags = [], "", [], 0, set()
        self.feed(content)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)
        self.scripts += tag == "script"
        self.is_data = ("type", "application/json") in attrs
        for name, value in attrs:
            assert name != "src"
            assert not name.startswith("on")
            assert name != "href" or value.startswith("#")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["script"]:
            self.text += data
        elif self.is_data:
            self.data.append(json.loads(data))
