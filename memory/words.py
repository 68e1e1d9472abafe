"""Words, as memory compares and finds them: the same for every database, since no database makes them."""

import re
import unicodedata

# A word has at most so many characters; what is longer is no word, and is cut.
LONGEST = 40

# What is written without blanks between words: each character is a word.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")


def words_of(text: str) -> list[str]:
    """The words of a text, each once, in their order: runs of letters and digits, without marks and cases."""
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    unmarked = "".join(character for character in plain if not unicodedata.category(character).startswith("M"))
    return list(dict.fromkeys(word[:LONGEST] for word in _WORD.findall(unmarked)))
