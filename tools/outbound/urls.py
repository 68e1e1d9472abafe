"""URLs of outbound requests: parsed once, strictly, and used in no other form.

Where parsers disagree (userinfo, backslashes, numbers that some take for an IPv4 address, escapes in a host), a check
can pass one meaning and a connection be made with another. So such a URL is refused, or written in the one form that
everybody reads alike.
"""

import re
import unicodedata
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import quote, urljoin

# Longer ones are refused by most servers.
_MAX_CHARACTERS = 8192

_PORTS = {"http": 80, "https": 443}
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\\]")
_PARTS = re.compile(r"(https?)://([^/?#]*)([^?#]*)(\?[^#]*)?(?:#.*)?", re.IGNORECASE)
_AUTHORITY = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::(.*))?")
_LABEL = re.compile(r"[a-z0-9_-]{1,63}")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


class Refusal(Exception):
    """A rule is not kept. ``rule`` is its name; the text says what is wrong, in a sentence that a model can act on."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(text)
        self.rule = rule


@dataclass(frozen=True, kw_only=True)
class Target:
    """A URL, taken apart. ``host``: ASCII, in lower case, IPv6 without brackets; ``path``: ASCII, with its query."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port

    @property
    def authority(self) -> str:
        """What stands in the header Host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"


def parse(url: str) -> Target:
    """Take a URL apart; raises :class:`Refusal` with http:url, http:scheme, http:userinfo, http:host or http:port."""
    url = url.strip(" ")
    if len(url) > _MAX_CHARACTERS:
        raise Refusal("http:url", f"a URL has {_MAX_CHARACTERS} characters at most")
    if _FORBIDDEN.search(url):
        raise Refusal("http:url", "a URL holds no control characters and no backslashes; write them as %xx")
    if not re.match(r"https?:", url, re.IGNORECASE):
        raise Refusal("http:scheme", "a URL must start with http:// or https://")
    found = _PARTS.fullmatch(url)
    if not found or not found[2]:
        raise Refusal("http:url", "after http:// or https:// a URL names its host, then its path")
    scheme, authority = found[1].lower(), found[2]
    if "@" in authority:
        raise Refusal("http:userinfo", "a URL holds no user name and no password; send the header Authorization")
    parts = _AUTHORITY.fullmatch(authority)
    if not parts:
        raise Refusal("http:host", "this host cannot be read")
    path = quote(found[3] or "/", safe="/%:@!$&'()*+,;=~[]") + quote(found[4] or "", safe="/%:@!$&'()*+,;=~[]?")
    if len(path) > _MAX_CHARACTERS:
        raise Refusal("http:url", f"a URL has {_MAX_CHARACTERS} characters at most, as %xx where it must")
    return Target(scheme=scheme, host=_host(parts[1]), port=_port(parts[2], scheme), path=path)


def join(base: Target, location: str) -> Target:
    """What a redirect leads to; raises as :func:`parse` does, which alone decides on what the joined URL means."""
    if _FORBIDDEN.search(location):  # urljoin would drop some of them
        raise Refusal("http:url", "the redirect's URL holds control characters or backslashes")
    location = location.strip(" ")
    if re.match(r"[a-z][a-z0-9+.-]*:", location, re.IGNORECASE):
        return parse(location)  # urljoin takes http:x and http:///x for paths
    try:
        return parse(urljoin(str(base), location))
    except ValueError:
        raise Refusal("http:url", "the redirect's URL cannot be read") from None


def shown(url: str) -> str:
    """A URL as errors show it, whatever it is: without userinfo and control characters, and not at length."""
    bare = re.sub(r"^\s*+([a-z][a-z0-9+.-]*+:)?([/\\]*+)[^/?#]*@", r"\1\2", url, flags=re.IGNORECASE)
    bare = re.sub(r"[^\x20-\x7e\xa0-\ud7ff\ue000-\U0010ffff]", "?", bare)
    return bare if len(bare) <= 200 else f"{bare[:200]}…"


def _port(text: str | None, scheme: str) -> int:
    if not text:
        return _PORTS[scheme]
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 0 < int(text) < 65536:
        raise Refusal("http:port", "this port is no number from 1 to 65535")
    return int(text)


def _host(text: str) -> str:
    """The one spelling of a host."""
    if text.startswith("["):
        try:
            if "%" in text:
                raise ValueError
            return str(IPv6Address(text[1:-1]))
        except ValueError:
            raise Refusal("http:host", "between [ and ] stands an IPv6 address, without a zone") from None
    if "%" in text:
        raise Refusal("http:host", "a host holds no %; write its characters as they are")
    host = text.lower() if text.isascii() else _ascii(text)
    host = host.removesuffix(".")
    labels = host.split(".")
    # What ends in a number is an IPv4 address to everybody, but 010.1 is one address to some and another to others.
    if _NUMBER.fullmatch(labels[-1]):
        try:
            return str(IPv4Address(host))
        except ValueError:
            raise Refusal(
                "http:host", "an IPv4 address is written as four decimal numbers, such as 192.0.2.1"
            ) from None
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise Refusal("http:host", "this is not the name of a host")
    return host


def _ascii(host: str) -> str:
    """As browsers have it (UTS 46, not transitional): what looks like ASCII becomes it, and is read as such."""
    import idna  # its tables are large, and few hosts need them

    try:
        return ".".join(_ascii_label(label) for label in idna.uts46_remap(host, std3_rules=False).split("."))
    except (idna.IDNAError, UnicodeError) as error:
        raise Refusal("http:host", f"this is not the name of a host: {error}") from None


def _ascii_label(label: str) -> str:
    import idna

    if label.isascii():
        return label
    letters = "".join(character for character in label if not _is_pictogram(character))
    if letters == label:
        return idna.alabel(label).decode()
    # IDNA 2008 knows no pictograms, browsers and registries do. All that it says of the rest holds.
    if letters:
        idna.check_label(letters)
    idna.check_bidi(label)
    return f"xn--{label.encode('punycode').decode()}"


def _is_pictogram(character: str) -> bool:
    """Such as 😀, or the shade of its skin; what stands for a letter, a digit or a sign was mapped."""
    return unicodedata.category(character) == "So" or "\U0001f3fb" <= character <= "\U0001f3ff"
