"""What reads a file: runs in a child process alone, whose fork server has imported it; it imports no Django.

Its kind is told by its content; a name, or what a client says of it, counts for nothing. A picture is decoded once, so
that a damaged one is refused before a model is sent it, and its thumbnail is made. Of PDFs and office files the text is
taken out. Each library is bounded from within where it can be (pixels, pages, what an archive says it holds), and all
of them by the child's memory and deadline.
"""

import base64
import io
import json
import logging
import re
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import docx
import openpyxl
import pptx
from docx.table import Table
from PIL import Image, UnidentifiedImageError
from pypdf import PdfReader

# What all models that can see take; and how each begins.
IMAGES = {"PNG": "image/png", "JPEG": "image/jpeg", "GIF": "image/gif", "WEBP": "image/webp"}
_PICTURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a")

PDF = "application/pdf"
_OFFICE = "application/vnd.openxmlformats-officedocument."
DOCX, XLSX = f"{_OFFICE}wordprocessingml.document", f"{_OFFICE}spreadsheetml.sheet"
PPTX = f"{_OFFICE}presentationml.presentation"
TEXT = "text/plain"

# A picture with more would take more memory than a child has, in Pillow's four bytes a pixel.
MAX_PIXELS = 40_000_000
# Of a side; Anthropic's bound for a picture.
MAX_SIDE = 8000
THUMBNAIL_SIDE = 256

# What an archive may say that it holds: its entries, and their bytes together once they are unpacked.
MAX_ENTRIES, MAX_UNPACKED = 10_000, 200 * 1024 * 1024
MAX_PAGES = 2000

# Those that a text has none of, but for blanks, ends of lines and pages, and ANSI's escape.
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_BLANK_LINES = re.compile(r"\n{3,}")


class Refused(Exception):
    """The file is not taken. ``code``: unsupported, too_large or damaged."""

    def __init__(self, code: str, words: str) -> None:
        super().__init__(words)
        self.code = code


def read(data: str, max_chars: int) -> str:
    """What a file is and says, as JSON: ``type``, ``width`` and ``height``, ``thumbnail`` (base64), ``text``,
    ``problem``: why there is no text, or not all of it. Or ``refused`` and ``words``. ``data``: in base64."""
    try:
        return json.dumps(_read(base64.b64decode(data), max_chars))
    except Refused as refused:
        return json.dumps({"refused": refused.code, "words": str(refused)})


def _read(data: bytes, max_chars: int) -> dict[str, Any]:
    if data.startswith(_PICTURES) or (data[:4] == b"RIFF" and data[8:12] == b"WEBP"):
        return _picture(data)
    if b"%PDF-" in data[:1024]:
        return {"type": PDF, **_taken_out(_of_pdf, data, max_chars)}
    if data.startswith(b"PK\x03\x04"):
        kind, texts = _office(data)
        return {"type": kind, **_taken_out(texts, data, max_chars)}
    if (text := _plain(data)) is not None:
        return {"type": TEXT, "text": text[:max_chars], "problem": _cut(len(text), max_chars)}
    raise Refused("unsupported", "it is no PNG, JPEG, GIF or WebP picture, PDF, Word, Excel or PowerPoint file or text")


def _cut(chars: int, max_chars: int) -> str:
    return f"only its first {max_chars} characters are here" if chars > max_chars else ""


# --- pictures ----------------------------------------------------------------------------------------------------


def _picture(data: bytes) -> dict[str, Any]:
    # Pillow's own bound warns first, and the size is looked at before anything is decoded.
    Image.MAX_IMAGE_PIXELS = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=list(IMAGES)) as picture:
                width, height = picture.size
                if width * height > MAX_PIXELS or max(width, height) > MAX_SIDE or min(width, height) < 1:
                    bounds = f"{MAX_SIDE} a side and {MAX_PIXELS} together are the most"
                    raise Refused("too_large", f"it has {width} x {height} pixels; {bounds}")
                kind = IMAGES[str(picture.format)]
                picture.load()
                small = picture.convert("RGBA" if picture.has_transparency_data else "RGB")
        small.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
        made = io.BytesIO()
        small.save(made, "PNG")
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, EOFError, KeyError, IndexError) as error:
        raise Refused("damaged", f"the picture cannot be decoded ({type(error).__name__})") from None
    thumbnail = base64.b64encode(made.getvalue()).decode()
    return {"type": kind, "width": width, "height": height, "thumbnail": thumbnail}


# --- texts -------------------------------------------------------------------------------------------------------


def _plain(data: bytes) -> str | None:
    """The text, if it is one."""
    codec = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = data.decode(codec)
    except UnicodeDecodeError:
        return None
    return None if not text.strip() or _CONTROL.search(text) else text


def _taken_out(texts: Callable[[bytes], Iterable[str]], data: bytes, max_chars: int) -> dict[str, Any]:
    """The text of a document, bounded; and if not all of it could be read, why."""
    parts: list[str] = []
    chars, problem = 0, ""
    try:
        for part in texts(data):
            parts.append(part[: max_chars + 1 - chars])
            chars += len(parts[-1]) + 1
            if chars > max_chars:
                break
    except Refused:
        raise
    except MemoryError:
        raise
    except Exception as error:
        problem = f"it could not be read to its end ({type(error).__name__})"
    text = _CONTROL.sub("", "\n".join(parts))
    # Ones that pair up to no character could not be stored.
    text = text.encode("utf-8", "replace").decode()
    text = "\n".join(line.rstrip(" \t\r") for line in text.split("\n"))
    text = _BLANK_LINES.sub("\n\n", text).strip()
    if not text and not problem:
        problem = "there is no text in it; it may be made of pictures"
    return {"text": text[:max_chars], "problem": problem or _cut(chars, max_chars)}


def _of_pdf(data: bytes) -> Iterator[str]:
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it tells of each oddity
    reader = PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        raise Refused("damaged", "the PDF is encrypted; send it without a password")
    for number, page in enumerate(reader.pages):
        if number == MAX_PAGES:
            break
        yield page.extract_text()


def _office(data: bytes) -> tuple[str, Callable[[bytes], Iterable[str]]]:
    """Which kind of office file an archive is, and what takes its text out."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
        raise Refused("damaged", f"the archive cannot be read ({type(error).__name__})") from None
    # No entry is read beyond what it says here: Python's zipfile stops there.
    if len(entries) > MAX_ENTRIES or sum(entry.file_size for entry in entries) > MAX_UNPACKED:
        raise Refused("too_large", f"unpacked, it would have more than {MAX_UNPACKED} bytes or {MAX_ENTRIES} files")
    names = {entry.filename for entry in entries}
    for name, kind, texts in _KINDS:
        if name in names:
            return kind, texts
    raise Refused("unsupported", "it is an archive, but no Word, Excel or PowerPoint file")


def _of_docx(data: bytes) -> Iterator[str]:
    for block in docx.Document(io.BytesIO(data)).iter_inner_content():
        if isinstance(block, Table):
            for row in block.rows:
                yield " | ".join(cell.text for cell in row.cells)
        else:
            yield block.text


def _of_xlsx(data: bytes) -> Iterator[str]:
    book = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True, keep_links=False)
    for sheet in book.worksheets:
        # Otherwise each row is as wide as the file says that the sheet is, 16,384 cells for an empty one.
        sheet.reset_dimensions()
        yield f"# {sheet.title}"
        for row in sheet.iter_rows(values_only=True):
            cells = ["" if value is None else str(value) for value in row]
            if any(cells):
                yield " | ".join(cells).rstrip(" |")


def _of_pptx(data: bytes) -> Iterator[str]:
    for number, slide in enumerate(pptx.Presentation(io.BytesIO(data)).slides, start=1):
        yield f"# Slide {number}"
        for shape in slide.shapes:
            if shape.has_text_frame:
                yield shape.text_frame.text
            elif shape.has_table:
                for row in shape.table.rows:
                    yield " | ".join(cell.text for cell in row.cells)


_KINDS = (
    ("word/document.xml", DOCX, _of_docx),
    ("xl/workbook.xml", XLSX, _of_xlsx),
    ("ppt/presentation.xml", PPTX, _of_pptx),
)
