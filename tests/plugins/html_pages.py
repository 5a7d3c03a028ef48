"""Pages as a test reads them: their tags and their text, and names that would be markup if they were not escaped."""

from html.parser import HTMLParser

VOID = {"meta"}
NASTY = "</pre><script>alert(1)</script>\n<img src=//x onerror=a>\x1b[31m\u202e & \"quoted\" {{ 7 * 7 }}"


class Page(HTMLParser):
    """Collects tags, and fails where one closes another's."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
