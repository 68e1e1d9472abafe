"""Markdown in the forms of platforms: what each is written as, and that nothing of it becomes a mark of its own."""

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversations.channels import dialects

MARKDOWN = """# A <b>

**bold *both*** ~~gone~~ `a<b` [link](https://x.example/?a=1&b=2) ![picture](https://x.example/p.png)

- one
- two
  - deep

3. three
4. four

> quoted

| a | b |
|---|---|
| 1 | 22 |

```python
if a < b: pass
```"""

TELEGRAM = """<b>A &lt;b&gt;</b>

<b>bold <i>both</i></b> <s>gone</s> <code>a&lt;b</code> <a href="https://x.example/?a=1&amp;b=2">link</a>\
 <a href="https://x.example/p.png">picture</a>

• one
• two
   • deep

3. three
4. four

<blockquote>quoted</blockquote>

<pre>a | b
--+---
1 | 22</pre>

<pre><code class="language-python">if a &lt; b: pass</code></pre>"""

SLACK = """*A &lt;b&gt;*

*bold _both_* ~gone~ `a&lt;b` <https://x.example/?a=1&amp;b=2|link> <https://x.example/p.png|picture>

• one
• two
   • deep

3. three
4. four

> quoted

```
a | b
--+---
1 | 22
```

```
if a &lt; b: pass
```"""


PLAIN = """A <b>

bold both gone a<b link (https://x.example/?a=1&b=2) picture (https://x.example/p.png)

• one
• two
   • deep

3. three
4. four

> quoted

a | b
--+---
1 | 22

if a < b: pass"""

WHATSAPP = PLAIN.replace("A <b>", "*A <b>*").replace("bold both gone a<b", "*bold _both_* ~gone~ `a<b`")
WHATSAPP = WHATSAPP.replace("a | b\n--+---\n1 | 22", "```a | b\n--+---\n1 | 22```").replace(
    "if a < b: pass", "```if a < b: pass```"
)


def test_each_has_its_own_form():
    assert dialects.telegram(MARKDOWN) == TELEGRAM
    assert dialects.slack(MARKDOWN) == SLACK
    assert "<strong>bold <em>both</em></strong>" in dialects.matrix(MARKDOWN)
    assert dialects.plain(MARKDOWN) == PLAIN
    assert dialects.whatsapp(MARKDOWN) == WHATSAPP
    # Discord's is Markdown itself, but for tables; of one that would be too long nothing is changed.
    table = "```\na | b\n--+---\n1 | 22\n```"
    assert dialects.discord(MARKDOWN, most=2000) == MARKDOWN.replace("| a | b |\n|---|---|\n| 1 | 22 |", table)
    assert dialects.discord(MARKDOWN, most=len(MARKDOWN) - 10) == MARKDOWN


class Tags(HTMLParser):
    """The tags of a text, and whether each that begins ends."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: set[str] = set()
        self.links: list[str] = []
        self.is_whole = True
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.links += [value or "" for name, value in attrs if name == "href"]
        if tag not in ("br", "hr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self.is_whole = self.is_whole and bool(self.open) and self.open.pop() == tag


WORDS = ("a", " ", "javascript:x", "https://x.example/\"'<", "<https://x.example|y>", "<b>", "</i>", "<script>", "&lt;")
LINKS = ("[a](a)", "[a](ftp://b)", "![a](data:b)", "[a](javascript:b)", "[a](HTTPS://b)")
MARKS = ("*", "**", "_", "~~", "`", "```\n", "[", "](", ")", "![", "\n", "\n\n", "> ", "- ", "1. ", "# ", "|", "|-|\n")
PIECES = st.lists(st.sampled_from((*WORDS, *LINKS, *MARKS)), max_size=60).map("".join)


@given(PIECES)
def test_no_text_becomes_a_tag_or_a_link_of_another_kind(text):
    known = {"a", "b", "blockquote", "code", "i", "pre", "s"}
    written = Tags(dialects.telegram(text))
    assert written.names <= known
    assert written.is_whole
    assert not written.open
    of_matrix = Tags(dialects.matrix(text))
    assert not of_matrix.names & {"script", "img", "style"}
    schemes = {link.partition(":")[0].lower() for link in written.links + of_matrix.links}
    assert schemes <= {"http", "https", "mailto", "tel"}


@given(PIECES)
def test_in_slack_nobody_is_called_and_no_tag_is_made(text):
    for part in dialects.slack(text).split("<")[1:]:
        assert part.lower().startswith(("http", "mailto:", "tel:"))
        assert ">" in part


@pytest.mark.parametrize("write", [dialects.telegram, dialects.slack, dialects.whatsapp, dialects.plain])
def test_a_link_to_nowhere_is_words(write):
    assert write("see [this]() and ![that]() []()").strip() == "see this and that"


def _discord(text: str) -> str:
    return dialects.discord(text, most=10_000_000)


WRITERS = (dialects.telegram, dialects.slack, dialects.matrix, dialects.whatsapp, dialects.plain, _discord)


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("piece", ["[", "*a ", "> ", "`", "![", "<", "_a*b "])
def test_a_text_of_a_megabyte_goes_out_without_marks(write, piece):
    text = piece * (1_000_000 // len(piece))
    assert len(write(text)) >= len(text)
    assert "<b>" not in write(text)


def test_the_longest_that_is_parsed_nests_as_deep_as_it_likes():
    for piece in ("> ", "- ", "*", "[", "**a "):
        for write in WRITERS:
            assert write(piece * (dialects.MAX_CHARS // len(piece)))
