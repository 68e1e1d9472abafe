"""Markdown, as models write it, in the dialects of platforms. Pure.

The text is parsed by markdown-it-py, CommonMark with tables and strikethrough, without HTML: what looks like a tag is
text, and is escaped as such. Pictures are links to them, since nothing is loaded by itself.
"""

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.token import Token

# A text that takes long to parse goes out as it is.
MAX_CHARS = 20_000

# Of links.
_SAFE = ("http://", "https://", "mailto:", "tel:")


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How a platform writes each. ``marks``, ``code``: what stands before and behind, by markdown-it's names. ``link``:
    of a text that is written already, and an address. ``escape``: of plain text."""

    escape: Callable[[str], str]
    link: Callable[[str, str], str]
    marks: Mapping[str, tuple[str, str]]
    code: tuple[str, str]
    block: Callable[[str, str], str]
    quote: Callable[[str], str]


def telegram(markdown: str) -> str:
    """The HTML that Telegram knows: few tags, no paragraphs."""
    return _written(markdown, _TELEGRAM)


def slack(markdown: str) -> str:
    """Slack's mrkdwn."""
    return _written(markdown, _SLACK)


def discord(markdown: str, *, most: int) -> str:
    """Discord's Markdown, which is what models write but for tables: those are blocks of code. ``most``: characters; a
    text that would be longer stays as it is."""
    if len(markdown) > MAX_CHARS or "|" not in markdown:
        return markdown
    lines, tokens = markdown.split("\n"), _reader().parse(markdown)
    for at in reversed([at for at, token in enumerate(tokens) if token.type == "table_open" and token.level == 0]):
        first, behind = tokens[at].map or (0, 0)
        lines[first:behind] = ["```", _table(tokens[at + 1 : _end_of(tokens, at) - 1]), "```"]
    made = "\n".join(lines)
    return made if len(made) <= most else markdown


def whatsapp(markdown: str) -> str:
    """WhatsApp's marks; it knows no links but addresses."""
    return _written(markdown, _WHATSAPP)


def plain(markdown: str) -> str:
    """No marks at all, for platforms that show none."""
    return _written(markdown, _PLAIN)


def matrix(markdown: str) -> str:
    """HTML as Matrix' ``org.matrix.custom.html`` has it."""
    if len(markdown) > MAX_CHARS:
        return html.escape(markdown, quote=False).replace("\n", "<br>")
    made: str = _html().render(markdown)
    return made.strip()


@cache
def _html() -> MarkdownIt:
    made = _parser()
    made.add_render_rule("image", _picture)
    return made


def _picture(renderer: object, tokens: Sequence[Token], index: int, options: object, env: object) -> str:
    token = tokens[index]
    address, words = str(token.attrGet("src") or ""), token.content or "picture"
    return f'<a href="{html.escape(address)}">{html.escape(words)}</a>'


class _Markdown(MarkdownIt):
    """CommonMark, of whose links only those count that name a scheme which is safe to follow; others are text."""

    def validateLink(self, url: str) -> bool:  # noqa: N802 -- markdown-it's name
        return url.lower().startswith(_SAFE)


def _parser() -> MarkdownIt:
    return _Markdown("commonmark", {"html": False}).enable(["table", "strikethrough"])


@cache
def _reader() -> MarkdownIt:
    return _parser()


def _written(markdown: str, dialect: Dialect) -> str:
    if len(markdown) > MAX_CHARS:
        return dialect.escape(markdown)
    return _Writer(dialect).blocks(_reader().parse(markdown)).strip("\n")


class _Writer:
    """Writes tokens, block by block."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def blocks(self, tokens: Sequence[Token], *, between: str = "\n\n") -> str:
        """Blocks, with an empty line between them, or none within a tight list."""
        parts: list[str] = []
        at = 0
        while at < len(tokens):
            end = _end_of(tokens, at)
            if written := self._block(tokens[at], tokens[at + 1 : end - 1]):
                parts.append(written)
            at = end
        return between.join(parts)

    def _block(self, token: Token, inner: Sequence[Token]) -> str:
        match token.type:
            case "paragraph_open":
                return self._inline(inner)
            case "heading_open":
                return _around(self._inline(inner), self._dialect.marks["strong"])
            case "bullet_list_open" | "ordered_list_open":
                return self._list(token, inner)
            case "blockquote_open":
                return self._dialect.quote(self.blocks(inner))
            case "fence" | "code_block":
                return self._dialect.block(self._dialect.escape(token.content.rstrip("\n")), token.info.strip())
            case "table_open":
                return self._dialect.block(self._dialect.escape(_table(inner)), "")
            case "hr":
                return "———"
            case "inline":
                return self._pieces(token.children or ())
        return self.blocks(inner)

    def _list(self, token: Token, inner: Sequence[Token]) -> str:
        number = int(token.attrGet("start") or 1) if token.type == "ordered_list_open" else None
        lines, at = [], 0
        while at < len(inner):
            end = _end_of(inner, at)
            mark = "•" if number is None else f"{number}."
            lines.append(f"{mark} {_indented(self._item(inner[at + 1 : end - 1]))}")
            number = None if number is None else number + 1
            at = end
        return "\n".join(lines)

    def _item(self, inner: Sequence[Token]) -> str:
        is_tight = any(each.type == "paragraph_open" and each.hidden for each in inner)
        return self.blocks(inner, between="\n" if is_tight else "\n\n")

    def _inline(self, inner: Sequence[Token]) -> str:
        return "".join(self._pieces(each.children or ()) for each in inner)

    def _pieces(self, tokens: Sequence[Token]) -> str:
        """What stands in a line."""
        dialect, stack = self._dialect, [("", "")]
        for token in tokens:
            match token.type:
                case "text":
                    stack[-1] = (stack[-1][0], stack[-1][1] + dialect.escape(token.content))
                case "softbreak" | "hardbreak":
                    stack[-1] = (stack[-1][0], stack[-1][1] + "\n")
                case "code_inline":
                    stack[-1] = (stack[-1][0], stack[-1][1] + _around(dialect.escape(token.content), dialect.code))
                case "image":
                    words = dialect.escape(token.content or "picture")
                    stack[-1] = (stack[-1][0], stack[-1][1] + _link(dialect, words, str(token.attrGet("src") or "")))
                case "link_open":
                    stack.append((str(token.attrGet("href") or ""), ""))
                case "strong_open" | "em_open" | "s_open":
                    stack.append((token.type.removesuffix("_open"), ""))
                case "link_close":
                    address, written = stack.pop()
                    stack[-1] = (stack[-1][0], stack[-1][1] + _link(dialect, written, address))
                case "strong_close" | "em_close" | "s_close":
                    kind, written = stack.pop()
                    stack[-1] = (stack[-1][0], stack[-1][1] + _around(written, dialect.marks[kind]))
        return stack[0][1]


def _end_of(tokens: Sequence[Token], at: int) -> int:
    """Behind the block that begins here."""
    depth = 0
    for place in range(at, len(tokens)):
        depth += tokens[place].nesting
        if depth <= 0:
            return place + 1
    return len(tokens)


def _around(written: str, marks: tuple[str, str]) -> str:
    return f"{marks[0]}{written}{marks[1]}" if written.strip() else written


def _indented(text: str) -> str:
    return text.replace("\n", "\n   ")


def _table(tokens: Sequence[Token]) -> str:
    """Its rows as lines, with columns as wide as their widest cell."""
    rows: list[list[str]] = []
    for token in tokens:
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline" and rows:
            rows[-1].append("".join(each.content for each in token.children or ()))
    columns = max((len(row) for row in rows), default=0)
    widths = [min(40, max((len(row[at]) for row in rows if at < len(row)), default=0)) for at in range(columns)]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip() for row in rows]
    return "\n".join([*lines[:1], "-+-".join("-" * width for width in widths), *lines[1:]])


def _link(dialect: Dialect, written: str, address: str) -> str:
    """``[words]()`` leads nowhere: then they are words."""
    return dialect.link(written, address) if address else written


def _escape_for_slack(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _slack_link(written: str, address: str) -> str:
    plain = address.replace("&", "&amp;").replace("<", "%3C").replace(">", "%3E").replace("|", "%7C")
    return f"<{plain}|{written.replace('|', '¦')}>" if written else f"<{plain}>"


def _telegram_link(written: str, address: str) -> str:
    return f'<a href="{html.escape(address)}">{written or html.escape(address)}</a>'


def _telegram_block(written: str, language: str) -> str:
    word = language.split()[0] if language.split() else ""
    if word.replace("-", "").replace("+", "").replace("#", "").isalnum():
        return f'<pre><code class="language-{html.escape(word)}">{written}</code></pre>'
    return f"<pre>{written}</pre>"


_TELEGRAM = Dialect(
    escape=lambda text: html.escape(text, quote=False),
    link=_telegram_link,
    marks={"strong": ("<b>", "</b>"), "em": ("<i>", "</i>"), "s": ("<s>", "</s>")},
    code=("<code>", "</code>"),
    block=_telegram_block,
    quote=lambda written: f"<blockquote>{written}</blockquote>",
)
_SLACK = Dialect(
    escape=_escape_for_slack,
    link=_slack_link,
    marks={"strong": ("*", "*"), "em": ("_", "_"), "s": ("~", "~")},
    code=("`", "`"),
    block=lambda written, _: f"```\n{written}\n```",
    quote=lambda written: "\n".join(f"> {line}" for line in written.split("\n")),
)


def _link_in_words(written: str, address: str) -> str:
    return address if written in ("", address) else f"{written} ({address})"


_WHATSAPP = Dialect(
    escape=lambda text: text,
    link=_link_in_words,
    marks={"strong": ("*", "*"), "em": ("_", "_"), "s": ("~", "~")},
    code=("`", "`"),
    block=lambda written, _: f"```{written}```",
    quote=lambda written: "\n".join(f"> {line}" for line in written.split("\n")),
)
_PLAIN = Dialect(
    escape=lambda text: text,
    link=_link_in_words,
    marks={"strong": ("", ""), "em": ("", ""), "s": ("", "")},
    code=("", ""),
    block=lambda written, _: written,
    quote=lambda written: "\n".join(f"> {line}" for line in written.split("\n")),
)
