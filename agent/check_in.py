"""A check-in's document, HEARTBEAT: whether there is anything to do in it, what the agent is asked then, and whether
its answer is worth telling. Pure."""

import re

HEARTBEAT_OK = "HEARTBEAT_OK"

HEAD = (
    "This is your heartbeat: the clock speaks, and nobody has written to you. Below is your document HEARTBEAT. Do what"
    " of it is due now, and then say what your user should be told. If there is nothing to do or to tell, answer"
    f" {HEARTBEAT_OK} and nothing else."
)

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
# Blank; a heading; a ticked box, in a list of either kind.
_NOTHING = re.compile(r"\s*|\s*#{1,6}(\s.*)?|\s*([-*+]|\d+[.)])\s+\[[xX]\](\s.*)?")


def has_something_to_do(document: str) -> bool:
    """Whether anything stands in it but headings, HTML comments, blank lines and ticked boxes."""
    return any(not _NOTHING.fullmatch(line) for line in _COMMENT.sub("", document).splitlines())


def question(document: str) -> str:
    """What the agent is asked."""
    return f"{HEAD}\n\n{document.strip()}"


def has_nothing_to_tell(answer: str) -> bool:
    """Whether HEARTBEAT_OK stands anywhere in it, as nanobot has it: in any case, however its underscore is written."""
    return HEARTBEAT_OK.replace("_", "") in answer.upper().replace("\\", "").replace("_", "")
