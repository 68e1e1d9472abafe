"""Files of all kinds that people send, small ones and hostile ones."""

import base64
import io
import struct
import zipfile
import zlib

import docx
import openpyxl
import pptx
from PIL import Image


def picture(kind: str = "PNG", size: tuple[int, int] = (32, 24), colour: tuple[int, int, int] = (200, 30, 30)) -> bytes:
    """A picture of one colour."""
    made = io.BytesIO()
    Image.new("RGB", size, colour).save(made, kind)
    return made.getvalue()


def pdf(*pages: str) -> bytes:
    """A PDF with a line of text a page, written by hand."""
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>"]
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects.append(f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode())
    objects.append(b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    for number, text in enumerate(pages):
        content = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode()
        page = f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {5 + 2 * number} 0 R"
        objects.append(f"{page} /Resources << /Font << /F1 3 0 R >> >> >>".encode())
        objects.append(b"<< /Length %d >>\nstream\n%b\nendstream" % (len(content), content))
    return assembled(objects)


def assembled(objects: list[bytes]) -> bytes:
    """A PDF of these objects, the first of which is its root."""
    made, places = bytearray(b"%PDF-1.4\n"), []
    for number, each in enumerate(objects, start=1):
        places.append(len(made))
        made += b"%d 0 obj\n%b\nendobj\n" % (number, each)
    begin = len(made)
    made += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    made += b"".join(b"%010d 00000 n \n" % place for place in places)
    made += b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % (len(objects) + 1, begin)
    return bytes(made)


def word(*paragraphs: str) -> bytes:
    """A Word file, its last paragraph in a table."""
    document = docx.Document()
    for text in paragraphs[:-1]:
        document.add_paragraph(text)
    document.add_table(1, 1).cell(0, 0).text = paragraphs[-1]
    return _saved(document)


def excel(*rows: tuple[object, ...]) -> bytes:
    """An Excel file of one sheet."""
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    return _saved(book)


def sparse_excel() -> bytes:
    """An Excel file with a word in its first cell and one in its last: of the last row, and of the last column."""
    sheet = (
        b'<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main">'
        b'<dimension ref="A1:XFD1048576"/><sheetData><row r="1"><c r="A1" t="inlineStr"><is><t>first</t></is></c></row>'
        b'<row r="1048576"><c r="XFD1048576" t="inlineStr"><is><t>last</t></is></c></row></sheetData></worksheet>'
    )
    with zipfile.ZipFile(io.BytesIO(excel(("first",)))) as made:
        entries = {name: made.read(name) for name in made.namelist()}
    entries["xl/worksheets/sheet1.xml"] = sheet
    made_so = io.BytesIO()
    with zipfile.ZipFile(made_so, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, data in entries.items():
            zipped.writestr(name, data)
    return made_so.getvalue()


def slides(*titles: str) -> bytes:
    """A PowerPoint file, a slide a title."""
    show = pptx.Presentation()
    for title in titles:
        show.slides.add_slide(show.slide_layouts[0]).shapes.title.text = title
    return _saved(show)


def _saved(document: object) -> bytes:
    made = io.BytesIO()
    document.save(made)  # type: ignore[attr-defined]  # each of the packages has it
    return made.getvalue()


def archive(**files: bytes) -> bytes:
    """A zip file; of names, ``__`` stands for ``/``, and they end in .xml."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, data in files.items():
            zipped.writestr(f"{name.replace('__', '/')}.xml", data)
    return made.getvalue()


def bomb_picture(width: int, height: int) -> bytes:
    """A PNG of some bytes that says it has so many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(b"\0" * 1000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def data_url(data: bytes, kind: str = "application/octet-stream") -> str:
    """As clients send it; what they say of its kind counts for nothing."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def image_part(data: bytes, kind: str = "image/png") -> dict[str, object]:
    """OpenAI's part of a picture."""
    return {"type": "image_url", "image_url": {"url": data_url(data, kind)}}


def file_part(data: bytes, name: str) -> dict[str, object]:
    """OpenAI's part of a file."""
    return {"type": "file", "file": {"filename": name, "file_data": data_url(data)}}


def text_part(text: str) -> dict[str, object]:
    """A part that is words."""
    return {"type": "text", "text": text}
