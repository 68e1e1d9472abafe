"""HTML as the text a reader sees, within a time that holds whatever the HTML is.

The parser is C and cannot be interrupted, and each one that was tried takes more than 10 s, or gigabytes, for some
page of half a megabyte (libxml2: a tag with 60,000 attributes; Lexbor: 100,000 nested elements). So it works in a
thread that is left behind if need be; a tool's process that a call leaves a thread in is ended with it.
"""

import queue
import threading

# An element costs half a kilobyte of memory, and may be written in three characters. Long pages have half as many.
_MAX_TAGS = 20_000


def beginning(html: str) -> str:
    """As much of a page as may be made readable."""
    return "<".join(html.split("<", _MAX_TAGS)[:_MAX_TAGS])


def readable(html: str, *, seconds: float) -> str | None:
    """The text of a page's beginning, blocks on lines of their own, without scripts and styles; None if that takes too
    long. What stands deeper than 255 elements in one another is left out.
    """
    from html_text import extract_text  # 40 ms that few calls need

    found: queue.SimpleQueue[str | Exception] = queue.SimpleQueue()

    def work() -> None:
        try:
            found.put(extract_text(beginning(html)))
        except Exception as error:
            found.put(error)

    worker = threading.Thread(target=work, name="readable", daemon=True)
    worker.start()
    try:
        text = found.get(timeout=max(0.0, seconds))
    except queue.Empty:
        return None
    worker.join()
    if isinstance(text, Exception):
        raise text
    return text
