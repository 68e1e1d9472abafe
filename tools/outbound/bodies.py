"""Bodies of answers: decompressed in small steps, and made text.

Each coding is a stage that pulls what it needs and gives at most ``_STEP`` bytes at once. A kilobyte can stand for a
gigabyte, but whoever has had enough stops pulling, and the rest is never made.
"""

import codecs
import encodings
import encodings.aliases
import re
import zlib
from collections.abc import Callable, Iterable, Iterator

import brotli

from tools.outbound.urls import Refusal

# Bytes a stage gives at once, at most (brotli: about that).
_STEP = 64 * 1024

# Few need two; each more would multiply what a byte can stand for. Brotli is read by itself alone: its window may take
# 16 MB, whatever limit its output has.
_MAX_CODINGS = 2

_GZIP = b"\x1f\x8b"

Stage = Callable[[Iterable[bytes]], Iterator[bytes]]


def decoded(chunks: Iterable[bytes], content_encoding: str, *, most: int) -> Iterator[bytes]:
    """The body behind its codings, piece by piece; ``most``: how many bytes of it will be asked for.

    Raises :class:`Refusal` with http:encoding for a coding that is unknown or broken, and with http:size where one
    coding hides more in another than the body could be made of.
    """
    codings = [coding.strip().lower() for coding in content_encoding.split(",")]
    codings = [coding for coding in codings if coding not in ("", "identity")]
    if unknown := [coding for coding in codings if coding not in _STAGES]:
        raise Refusal(
            "http:encoding", f"the answer is coded as {unknown[0][:40]!r}; only gzip, deflate and br are read"
        )
    if len(codings) > (1 if "br" in codings else _MAX_CODINGS):
        raise Refusal("http:encoding", f"the answer is coded {len(codings)} times, one coding within another")
    for number, coding in enumerate(reversed(codings)):
        if number:
            chunks = _no_more_than(2 * most + _STEP, chunks)
        chunks = _STAGES[coding](chunks)
    return iter(chunks)


def _no_more_than(most: int, chunks: Iterable[bytes]) -> Iterator[bytes]:
    passed = 0
    for chunk in chunks:
        passed += len(chunk)
        if passed > most:
            raise Refusal("http:size", "the answer hides too much in one coding within another")
        yield chunk


def _inflated(chunks: Iterable[bytes], coding: str, begin: Callable[[bytes], "zlib._Decompress"]) -> Iterator[bytes]:
    """Zlib's streams: one, or with gzip several. ``begin``: makes a decompressor, given the first bytes."""
    stream: zlib._Decompress | None = None
    data, has_ended = b"", False
    try:
        for chunk in chunks:
            data += chunk
            while len(data) > 1 or (data and stream):
                if stream is None:
                    if has_ended and not (coding == "gzip" and data.startswith(_GZIP)):
                        return  # rubbish behind it
                    stream = begin(data)
                while True:
                    piece = stream.decompress(data, _STEP)
                    data = stream.unconsumed_tail
                    if piece:
                        yield piece
                    if stream.eof or (not data and len(piece) < _STEP):
                        break
                if stream.eof:
                    data, stream, has_ended = stream.unused_data, None, True
    except zlib.error:
        raise Refusal("http:encoding", f"the answer says it is {coding}, and is not") from None
    if stream or (data and not has_ended):
        raise Refusal("http:encoding", f"the answer ended in the middle of its {coding}")


def _gunzipped(chunks: Iterable[bytes]) -> Iterator[bytes]:
    return _inflated(chunks, "gzip", lambda _: zlib.decompressobj(16 + zlib.MAX_WBITS))


def _deflated(chunks: Iterable[bytes]) -> Iterator[bytes]:
    def begin(data: bytes) -> "zlib._Decompress":
        # The standard means zlib's format by it; many servers send it without zlib's header.
        has_header = data[0] & 0x0F == 8 and int.from_bytes(data[:2], "big") % 31 == 0
        return zlib.decompressobj(zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS)

    return _inflated(chunks, "deflate", begin)


def _unbrotlied(chunks: Iterable[bytes]) -> Iterator[bytes]:
    stream, received = brotli.Decompressor(), False
    try:
        for chunk in chunks:
            received = received or bool(chunk)
            piece = stream.process(chunk, output_buffer_limit=_STEP)
            # It can take more before it has given all, and then wants to be asked with nothing.
            while piece or not stream.can_accept_more_data():
                yield piece
                piece = stream.process(b"", output_buffer_limit=_STEP)
    except brotli.error:
        raise Refusal("http:encoding", "the answer says it is br, and is not") from None
    if received and not stream.is_finished():
        raise Refusal("http:encoding", "the answer ended in the middle of its br")


_STAGES: dict[str, Stage] = {"gzip": _gunzipped, "x-gzip": _gunzipped, "deflate": _deflated, "br": _unbrotlied}


# --- text --------------------------------------------------------------------------------------------------------

# Python's name of a charset, and the codec that reads it. As the web has it (encoding.spec.whatwg.org): some names mean
# a larger set. Others are not read: utf-7, punycode and unicode_escape give text another meaning than it seems to have.
_CODECS = {
    **{name: name for name in ("utf_8", "utf_16", "utf_16_le", "utf_16_be", "utf_32", "utf_32_le", "utf_32_be")},
    **dict.fromkeys(("ascii", "latin_1", "cp1252"), "cp1252"),
    **{f"iso8859_{n}": f"iso8859_{n}" for n in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)},
    **{f"cp125{n}": f"cp125{n}" for n in (0, 1, 3, 4, 5, 6, 7, 8)},
    **{name: name for name in ("koi8_r", "koi8_u", "mac_roman", "mac_cyrillic", "cp866", "euc_jp", "iso2022_jp")},
    **dict.fromkeys(("gb2312", "gbk", "gb18030"), "gb18030"),
    **dict.fromkeys(("shift_jis", "cp932"), "cp932"),
    **dict.fromkeys(("euc_kr", "cp949"), "cp949"),
    **dict.fromkeys(("big5", "big5hkscs"), "big5hkscs"),
    "iso8859_9": "cp1254",
    "iso8859_11": "cp874",
    "tis_620": "cp874",
    "cp874": "cp874",
}
# Names of the web that Python does not know.
_ALIASES = {
    "x_sjis": "cp932",
    "windows_31j": "cp932",
    "windows_874": "cp874",
    "x_gbk": "gbk",
    "x_euc_jp": "euc_jp",
    "iso_8859_8_i": "iso8859_8",
    "x_mac_cyrillic": "mac_cyrillic",
}

_MARKS = ((codecs.BOM_UTF8, "utf_8"), (codecs.BOM_UTF16_LE, "utf_16_le"), (codecs.BOM_UTF16_BE, "utf_16_be"))

# Where HTML names its charset, as browsers look for it, and XML.
_PRESCAN = 1024
_META = re.compile(rb"<meta[^>]{1,200}?charset\s*+=\s*+[\"']?\s*+([A-Za-z0-9_:.-]{1,40})", re.IGNORECASE)
_XML = re.compile(rb"^\s*<\?xml[^>]{1,200}?encoding\s*=\s*[\"']([A-Za-z0-9_:.-]{1,40})")

# No text holds these, in a charset in which ASCII is a byte a character.
_NO_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_TEXT_TYPE = re.compile(
    r"text/.+|.+\+(json|xml)|application/(json|xml|javascript|ecmascript|x-javascript|yaml|x-yaml|toml|graphql|sql"
    r"|x-www-form-urlencoded|x-ndjson|jsonl|rtf|x-sh)"
)


def media_type(content_type: str) -> str:
    """``text/html`` of ``Text/HTML; charset=x``."""
    return content_type.partition(";")[0].strip().lower()


def is_html(content_type: str) -> bool:
    return media_type(content_type) in ("text/html", "application/xhtml+xml")


def text_of(body: bytes, content_type: str) -> str | None:
    """The text of a body; None for one that is none.

    Its charset is that of its byte order mark, or of Content-Type, or named in its HTML or XML; else UTF-8. What cannot
    be read is replaced. A body of a type that is no text's, or of none, is text if it is UTF-8 all through, or says
    its charset.
    """
    for mark, codec in _MARKS:
        if body.startswith(mark):
            return body[len(mark) :].decode(codec, "replace")
    codec = _named(content_type) or _declared(body[:_PRESCAN], media_type(content_type)) or ""
    wide = codec.startswith(("utf_16", "utf_32"))
    if not wide and _NO_TEXT.search(body):
        return None
    if codec or _TEXT_TYPE.fullmatch(media_type(content_type)):
        return body.decode(codec or "utf_8", "replace")
    try:
        # Not final: where a body is cut, its last character may be too.
        return codecs.getincrementaldecoder("utf_8")("strict").decode(body)
    except UnicodeDecodeError:
        return None


def _named(content_type: str) -> str | None:
    found = re.search(r";\s*+charset\s*+=\s*+[\"']?\s*+([A-Za-z0-9_:.-]{1,40})", content_type, re.IGNORECASE)
    return _codec(found[1]) if found else None


def _declared(start: bytes, kind: str) -> str | None:
    pattern = _XML if kind.endswith("xml") and kind != "application/xhtml+xml" else _META
    if kind and not ("html" in kind or "xml" in kind):
        return None
    found = pattern.search(start)
    codec = _codec(found[1].decode("ascii")) if found else None
    # It was just read as ASCII, so it is not that.
    return "utf_8" if codec and codec.startswith(("utf_16", "utf_32")) else codec


def _codec(label: str) -> str | None:
    """The codec of a charset's name. Looked up as data: Python would import whatever module the name may be of."""
    name = encodings.normalize_encoding(label).lower()
    name = _ALIASES.get(name) or encodings.aliases.aliases.get(name, name)
    return _CODECS.get(name)
