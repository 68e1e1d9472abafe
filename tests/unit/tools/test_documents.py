"""Files are read in a child process: their kind by their content, their text, and whatever is wrong with them."""

import os
from contextlib import suppress
from io import BytesIO

import pytest
from pypdf import PdfReader, PdfWriter

from tests.support import files
from tools.documents import reading
from tools.documents.reader import DOCX, PDF, PPTX, XLSX
from tools.documents.reading import AttachmentTooLarge, Read, Unreadable, UnsupportedContent

pytestmark = pytest.mark.shapeless(reason="it touches no row")


def read(data: bytes) -> Read:
    return reading.read(data, name="it")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP"])
def test_a_picture_is_known_by_its_content_and_gets_a_thumbnail(kind):
    found = read(files.picture(kind, (1000, 500)))
    assert (found.media_type, found.width, found.height) == (f"image/{kind.lower()}", 1000, 500)
    small = read(found.thumbnail)
    assert (small.media_type, small.width, small.height) == ("image/png", 256, 128)


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (files.pdf("Page one", "Page two"), PDF, "Page one\nPage two"),
        (files.word("First", "In a table"), DOCX, "First\nIn a table"),
        (files.excel(("Name", "Sum"), ("Anna", 7), (None, None)), XLSX, "# Sheet\nName | Sum\nAnna | 7"),
        (files.sparse_excel(), XLSX, "# Sheet\nfirst\n" + " | " * 16_383 + "last"),
        (files.slides("Hello", "Bye"), PPTX, "# Slide 1\nHello\n\n# Slide 2\nBye"),
        ("Grüße, 1 €".encode(), "text/plain", "Grüße, 1 €"),
        ("Grüße".encode("utf-16"), "text/plain", "Grüße"),
        (b"<svg onload='alert(1)'/>", "text/plain", "<svg onload='alert(1)'/>"),
    ],
)
def test_text_is_taken_out(data, kind, text):
    found = read(data)
    assert (found.media_type, found.text, found.problem) == (kind, text, "")


def test_a_text_that_is_long_is_cut_and_says_so(settings):
    settings.ATTACHMENT_TEXT_CHARS = 5
    for data in (b"123456789", files.pdf("123456789"), files.word("123456789", "x")):
        found = read(data)
        assert (found.text, found.problem) == ("12345", "only its first 5 characters are here")


def test_a_document_without_text_says_so():
    assert "no text in it" in read(files.pdf("")).problem


@pytest.mark.parametrize(
    "data",
    [b"", b"\x00\x01\x02", b"\x7fELF" + bytes(50), b"\xd0\xcf\x11\xe0" * 9, files.archive(a=b"x"), b"BM" + bytes(60)],
)
def test_what_is_of_another_kind_is_refused(data):
    with pytest.raises((UnsupportedContent, Unreadable)) as refused:
        read(data)
    assert refused.value.detail.startswith("it: ")
    assert refused.value.code in ("unsupported_file_type", "attachment_unreadable")


def test_a_picture_that_is_cut_off_is_refused():
    whole = files.picture("PNG", (300, 300)) + b""
    for data in (whole[:60], files.picture("JPEG", (300, 300))[:200], b"GIF89a", b"\xff\xd8\xff"):
        with pytest.raises(Unreadable):
            read(data)


def test_a_decompression_bomb_is_refused_before_it_is_decoded():
    for size in ((50_000, 50_000), (8001, 1), (7000, 7000)):
        with pytest.raises(AttachmentTooLarge) as refused:
            read(files.bomb_picture(*size))
        assert f"{size[0]} x {size[1]} pixels" in refused.value.detail


def test_a_zip_bomb_is_refused():
    with pytest.raises(AttachmentTooLarge):
        read(files.archive(word__document=b"\0" * 210_000_000))


def test_an_archive_with_very_many_files_is_refused():
    with pytest.raises(AttachmentTooLarge):
        read(files.archive(word__document=b"x", **{f"f{number}": b"" for number in range(10_001)}))


def test_an_office_file_that_is_damaged_says_so_in_words():
    found = read(files.archive(word__document=b"<no"))
    assert (found.media_type, found.text) == (DOCX, "")
    assert found.problem.startswith("it could not be read to its end")


def test_entities_that_swell_are_not_followed():
    laughs = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 12))
    text = f'<!DOCTYPE w [<!ENTITY l0 "lol">{laughs}]><w:document>&l11;</w:document>'.encode()
    with suppress(Unreadable):  # stopped by its limits
        assert len(read(files.archive(word__document=text)).text) < 200_000


def test_a_pdf_whose_pages_lead_in_a_circle_ends():
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [2 0 R 2 0 R] /Count 2000000 >>"]
    with suppress(Unreadable):  # stopped by its limits
        assert read(files.assembled(objects)).problem


def test_a_pdf_that_takes_too_long_is_stopped(settings):
    settings.ATTACHMENT_READ_SECONDS = 0.01
    with pytest.raises(Unreadable) as refused:
        read(files.pdf(*["word " * 400] * 1500))
    assert "timed out after 0.01 s" in refused.value.detail


def test_a_pdf_with_a_password_is_refused():
    writer = PdfWriter(clone_from=PdfReader(BytesIO(files.pdf("secret"))))
    writer.encrypt("a password", algorithm="RC4-128")
    made = BytesIO()
    writer.write(made)
    with pytest.raises(Unreadable) as refused:
        read(made.getvalue())
    assert "encrypted" in refused.value.detail


def test_random_bytes_behind_each_beginning_end_in_words_or_an_error():
    for begin in (b"%PDF-1.7\n", b"PK\x03\x04", b"\x89PNG\r\n\x1a\n", b"RIFF\0\0\0\0WEBP", b"GIF87a"):
        with suppress(Unreadable, UnsupportedContent, AttachmentTooLarge):
            assert read(begin + os.urandom(5000)).problem
