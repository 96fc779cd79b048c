"""The server's page is in English and Chinese: each text has both."""

import re
from html.parser import HTMLParser

from common import ROOT

FOLDER = ROOT / "roformer_keras" / "server" / "page"
# The same in both languages.
NAMES = {"roformer-keras", "chinese-poetry", "openapi.json", "…"}
# Elements without text.
VOID = {"input", "link", "meta"}
CHINESE = re.compile(r"[\u3001-\u9fff\uff01-\uff5e]")


class Texts(HTMLParser):
    """Texts of the page that a reader of Chinese would see in English."""

    def __init__(self):
        super().__init__()
        self.open: list = []
        self.translated, self.untranslated = 0, []

    def handle_starttag(self, tag, attributes):
        if tag not in VOID:
            self.open.append(dict(attributes))

    def handle_endtag(self, tag):
        self.open.pop()

    def handle_data(self, data):
        attributes = self.open[-1] if self.open else {}
        if CHINESE.search(attributes.get("data-zh", "")):
            self.translated += 1
        elif data.strip() and data.strip() not in NAMES and "lang" not in attributes:
            self.untranslated.append(data.strip())


def test_every_text_of_the_page_has_its_chinese():
    texts = Texts()
    texts.feed((FOLDER / "page.html").read_text(encoding="utf-8"))
    assert texts.untranslated == []
    assert texts.translated > 15


def test_every_message_of_the_script_has_its_chinese():
    script = (FOLDER / "page.js").read_text(encoding="utf-8")
    pairs = re.findall(r"localized\(([\"`].+?[\"`]), ([\"`].+?[\"`])\)", script)
    assert len(pairs) == script.count("localized(") >= 6
    assert all(CHINESE.search(chinese) for _, chinese in pairs)
    # What is shown elsewhere is a number, or the server's own error.
    shown = re.findall(r"showRemark\(\w+, (.+?)\);", script)
    assert {text for text in shown if "localized" not in text} == {
        "error.message, true"
    }
