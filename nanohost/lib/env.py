"""Typed readers of environment variables; what makes no sense is refused in one line."""

import hashlib
import hmac
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit
from zoneinfo import ZoneInfo

from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.core.validators import validate_email

from nanohost.lib.redaction import redact, remember, remember_file

T = TypeVar("T")

# Secrets that were variables of this process, by name.
_taken: dict[str, str] = {}

# Files that stand for variables which are not set, by name.
_kept: dict[str, Path] = {}

# Headers whose values are told to everybody, and may be words of any text.
PUBLIC_HEADERS = frozenset(
    {"accept", "accept-language", "app-code", "content-type", "http-referer", "referer", "user-agent", "x-title"}
)
# What a request has of its own, and a header of the user's would break.
_OF_REQUESTS = {"connection", "content-length", "expect", "host", "te", "trailer", "transfer-encoding", "upgrade"}


def _read(name: str, default: T, parse: Callable[[str], T], expected: str) -> T:
    return _parsed(name, os.environ.get(name, "").strip(), default, parse, expected)


def _parsed(name: str, raw: str, default: T, parse: Callable[[str], T], expected: str) -> T:
    if not raw:
        return default
    try:
        raw.encode()  # what is not UTF-8 arrives as lone surrogates
        return parse(raw)
    except UnicodeEncodeError:
        raise ImproperlyConfigured(f"{name} is not valid: expected UTF-8.") from None
    except ValueError:
        raise ImproperlyConfigured(redact(f"{name}={raw!r} is not valid: expected {expected}.")) from None


def string(name: str, default: str = "") -> str:
    return _read(name, default, str, "text")


def secret(name: str) -> str:
    """A text that nobody may see, from the variable or from the file that ``<name>_FILE`` names."""
    return _parsed(name, raw_secret(name), "", str, "text")


def key(name: str) -> str:
    """A secret that travels in a header: an error does not show it."""
    value = secret(name)
    if not (value.isascii() and value.isprintable()) or " " in value:
        raise ImproperlyConfigured(f"{name} is not valid: expected printable ASCII without blanks.")
    return value


def server(name: str, *, schemes: Sequence[str]) -> str:
    """The URL of a server, a secret since it may hold a password: an error does not show it. The password is known as
    one by itself, too."""
    value = secret(name)
    try:
        parts = urlsplit(value)
        if value and (parts.scheme not in schemes or not (parts.hostname or parts.query) or parts.port == 0):
            raise ValueError
    except ValueError:
        raise ImproperlyConfigured(f"{name} is not valid: expected {schemes[0]}://user:password@host/name.") from None
    in_query = [each.removeprefix("password=") for each in parts.query.split("&") if each.startswith("password=")]
    # One that is the user's or the database's name keeps nobody out, and that word would be masked in every text.
    names = {parts.username, parts.hostname, parts.path.strip("/")}
    for written in (parts.password or "", *in_query):
        for password in {written, unquote(written)} - names:
            remember(f"{name} password", password)
    return value


def raw_secret(name: str) -> str:
    """The variable's value, or the content of the file that ``<name>_FILE`` names; "" without either."""
    value = os.environ.get(name, _taken.get(name, "")).strip()
    file = os.environ.get(f"{name}_FILE", "").strip()
    if not (value or file):
        return _kept_value(name)
    if value and file:
        raise ImproperlyConfigured(f"{name} and {name}_FILE are both set; set one.")
    if not file:
        remember(name, value)
        return value
    try:
        value = Path(file).read_text().strip()
        if "\0" in value:  # which no variable could hold either
            raise ValueError
    except (OSError, UnicodeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it holds no text"
        raise ImproperlyConfigured(f"{name}_FILE={file!r} cannot be read: {reason}.") from None
    remember(name, value)
    return value


def _kept_value(name: str) -> str:
    """What the file holds that stands for a variable; "" if there is none."""
    if name not in _kept or not _kept[name].is_file():
        return ""
    try:
        value = _kept[name].read_text().strip()
        if "\0" in value:
            raise ValueError
    except (OSError, UnicodeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it holds no text"
        raise ImproperlyConfigured(f"{name}: {_kept[name]} cannot be read: {reason}.") from None
    remember(name, value)
    return value


def keep_in(folder: Path, *, names: Iterable[str]) -> None:
    """From now on, files of this folder stand for these variables where they are not set."""
    _kept.clear()
    _kept.update({name: folder / name.lower() for name in names})


def is_set(name: str) -> bool:
    """Whether the environment says it, in a variable or in the file that one names."""
    return any(os.environ.get(each, _taken.get(each, "")).strip() for each in (name, f"{name}_FILE"))


def of_environment() -> dict[str, str]:
    """All variables: of those who refer to some by name."""
    return _taken | os.environ


def derived(secret: str, purpose: str) -> str:
    """A secret for one purpose, made of another: who knows it does not know the other."""
    return hmac.new(secret.encode(), purpose.encode(), hashlib.sha256).hexdigest()


def have_redacted(names: Iterable[str]) -> None:
    """Have the secrets of those names taken out of all that leaves, wherever they stand, from now on: also those that
    this process never reads. What a file holds counts when it changes, too; one that cannot be read, once it can."""
    for name in names:
        remember(name, os.environ.get(name, ""))
        if file := os.environ.get(f"{name}_FILE", "").strip():
            remember_file(name, Path(file))


def take_out(names: Iterable[str]) -> None:
    """Keep these secrets in memory instead of the environment, where whatever is started would find them."""
    for name in names:
        if value := os.environ.pop(name, ""):
            remember(name, value.strip())
            _taken[name] = value


def beginning_with(prefixes: tuple[str, ...]) -> set[str]:
    """The variables whose names begin so, without those that name a file."""
    return {name for name in os.environ if name.startswith(prefixes) and not name.endswith("_FILE")}


def inherited(names: Iterable[str]) -> dict[str, str]:
    """Those variables that are set, as they are, to be passed on to a process; those that were taken out as well."""
    known = _taken | os.environ
    return {name: known[name] for name in names if name in known}


def integer(name: str, default: int, *, minimum: int = 1, maximum: int = 2**31) -> int:
    def parse(raw: str) -> int:
        if not minimum <= (value := int(raw)) <= maximum:
            raise ValueError
        return value

    return _read(name, default, parse, f"a whole number from {minimum} to {maximum}")


def seconds(name: str, default: float) -> float:
    def parse(raw: str) -> float:
        value = float(raw)
        if not 0 < value < 10**7:  # also refuses nan and inf
            raise ValueError
        return value

    return _read(name, default, parse, "a number of seconds above 0")


def share(name: str, default: float) -> float:
    def parse(raw: str) -> float:
        value = float(raw)
        if not 0 <= value <= 1:  # also refuses nan
            raise ValueError
        return value

    return _read(name, default, parse, "a share from 0 to 1")


def boolean(name: str, default: bool) -> bool:
    def parse(raw: str) -> bool:
        words = {
            "1": True,
            "true": True,
            "yes": True,
            "on": True,
            "0": False,
            "false": False,
            "no": False,
            "off": False,
        }
        if raw.lower() not in words:
            raise ValueError
        return words[raw.lower()]

    return _read(name, default, parse, "true or false")


def words(name: str, default: Sequence[str] = ()) -> list[str]:
    """A comma-separated list; blanks around its words are dropped."""
    return _read(name, list(default), lambda raw: [word.strip() for word in raw.split(",") if word.strip()], "a list")


def pairs(name: str, *, values: Collection[str]) -> list[tuple[str, str]]:
    """What leads to one of these values: ``key=value, key=value``. A key may hold ``=`` itself."""
    found = []
    for word in words(name):
        key, sign, value = (part.strip() for part in word.rpartition("="))
        if not (sign and key and value in values):
            raise ImproperlyConfigured(
                redact(f"{name} is not valid: {word!r} is no name with =, and one of {', '.join(values)}.")
            )
        found.append((key, value))
    return found


def addresses(name: str) -> list[str]:
    """E-mail addresses."""
    found = words(name)
    for each in found:
        try:
            validate_email(each)
        except ValidationError:
            raise ImproperlyConfigured(f"{name} is not valid: {each!r} is no e-mail address.") from None
    return found


def origins(name: str) -> list[str]:
    """Origins of web pages, as browsers write them: ``https://example.org``; or ``*``."""
    found = words(name)
    for each in found:
        if each != "*" and not re.fullmatch(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?", each):
            raise ImproperlyConfigured(
                f"{name} is not valid: {each!r} is not an origin such as https://example.org, without a path."
            )
    return found


def choice(name: str, default: str, choices: Sequence[str]) -> str:
    def parse(raw: str) -> str:
        if raw not in choices:
            raise ValueError
        return raw

    return _read(name, default, parse, f"one of {', '.join(choices)}")


def cron(name: str, default: str) -> str:
    """A cron expression of five fields, or of six with the second, 0, first: what beat's crontab takes."""

    def parse(raw: str) -> str:
        from celery.exceptions import ImproperlyConfigured as Senseless
        from celery.schedules import ParseException, crontab

        *second, minute, hour, day, month, weekday = raw.split()
        if second not in ([], ["0"]):
            raise ValueError
        try:
            crontab(minute=minute, hour=hour, day_of_month=day, month_of_year=month, day_of_week=weekday)
        except (ParseException, Senseless):
            raise ValueError from None
        return raw

    return _read(name, default, parse, "minute, hour, day, month and weekday, behind 0 for the second or not")


def path(name: str, default: Path) -> Path:
    """An absolute path; ``~`` is the home directory."""

    def parse(raw: str) -> Path:
        try:
            return Path(raw).expanduser().resolve()
        except RuntimeError:  # no such home, or a symlink that leads to itself
            raise ValueError from None

    return _read(name, default, parse, "a path")


def folders(name: str) -> list[str]:
    """A comma-separated list of absolute paths; ``~`` is the home directory. Each is as it stands, links and all."""

    def parse(raw: str) -> list[str]:
        try:
            found = [Path(word.strip()).expanduser() for word in raw.split(",") if word.strip()]
        except RuntimeError:  # no such home
            raise ValueError from None
        if not all(each.is_absolute() for each in found):
            raise ValueError
        return list(map(str, found))

    return _read(name, [], parse, "a list of absolute paths")


def patterns(name: str) -> list[str]:
    """A comma-separated list of patterns of paths; ``~/`` is the home directory. One that begins at the machine's root
    is listed as well with what its folders are links to."""
    found: list[str] = []
    for word in words(name):
        try:
            pattern = str(Path(word).expanduser()) if word.startswith("~/") else word
        except RuntimeError:  # there is no home
            raise ImproperlyConfigured(redact(f"{name} is not valid: {word!r} is in no home directory.")) from None
        found.append(pattern)
        if pattern.startswith("/"):
            parts = pattern.split("/")
            stars = (at for at, part in enumerate(parts) if "*" in part or "?" in part)
            plain = next(stars, len(parts))
            folder = os.path.realpath("/".join(parts[:plain]) or "/")
            found.append("/".join([folder.rstrip("/"), *parts[plain:]]) or "/")
    return list(dict.fromkeys(found))


def address(name: str, default: str = "") -> str:
    def parse(raw: str) -> str:
        parts = urlsplit(raw)
        # Reading the port raises ValueError for one that is none.
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError
        return raw

    return _read(name, default, parse, "an address that starts with http:// or https://")


def addresses_by_name(name: str, *, names: Collection[str]) -> dict[str, str]:
    """Addresses of some of these names: ``name=https://…, name=https://…``."""
    found = {}
    kept = _kept_value(name)
    for word in [*kept.splitlines(), *words(name)]:  # the environment's word is the last
        key, _, value = (part.strip() for part in word.partition("="))
        try:
            parts = urlsplit(value)
            is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_one = False
        if key not in names or not is_one:
            raise ImproperlyConfigured(
                redact(
                    f"{name} is not valid: {word!r} is not one of {', '.join(names)} with =, and an address that"
                    " starts with http:// or https://."
                )
            )
        found[key] = value
    return found


def headers(name: str, *, names: Collection[str]) -> dict[str, dict[str, str]]:
    """Headers by one of these names, as JSON: ``{"name": {"X-Header": "value"}}``. They may be secrets: errors do not
    show them."""
    if not (raw := secret(name)):
        return {}
    try:
        found = json.loads(raw)
        if not isinstance(found, dict):
            raise ValueError("no object")
        for key, values in found.items():
            if key not in names:
                raise ValueError(f"{key[:40]!r} is not one of {', '.join(names)}")
            check_headers(values)
    except RecursionError:
        raise ImproperlyConfigured(f"{name} is not valid: it is nested too deeply.") from None
    except json.JSONDecodeError:
        expected = 'expected JSON such as {"openrouter": {"X-Title": "mine"}}'
        raise ImproperlyConfigured(f"{name} is not valid: {expected}.") from None
    except ValueError as error:
        raise ImproperlyConfigured(f"{name} is not valid: {error}.") from None
    for values in found.values():
        for header, value in values.items():
            if header.lower() not in PUBLIC_HEADERS:
                remember(f"{name} {header}", value)
    return found


def objects(name: str, example: str) -> dict[str, dict[str, Any]]:
    """JSON objects by name; ``example`` says what is expected. Somebody may have put a secret there: errors do not show
    what it is."""
    raw = string(name)
    try:
        found = json.loads(raw, parse_constant=_no_number) if raw else {}
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
        raise ImproperlyConfigured(f"{name} is not valid: expected JSON such as {example}.")
    return found


def _no_number(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def check_headers(values: object) -> None:
    """See that these are headers by name; ValueError says what is wrong, without a value."""
    if not isinstance(values, dict):
        raise ValueError('headers are an object, such as {"X-Title": "mine"}')
    for header, value in values.items():
        if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}", header) or header.lower() in _OF_REQUESTS:
            raise ValueError(f"{header[:40]!r} is no header that may be set")
        if not isinstance(value, str) or not (value.isascii() and value.isprintable()) or len(value) > 8_000:
            raise ValueError(f"the value of {header} is no printable ASCII text")


def currency(name: str, default: str) -> str:
    """Three letters, as ISO 4217 has them."""

    def parse(raw: str) -> str:
        if not re.fullmatch("[A-Z]{3}", raw):
            raise ValueError
        return raw

    return _read(name, default, parse, "three capital letters, such as EUR")


def time_zone(name: str, default: str) -> str:
    def parse(raw: str) -> str:
        try:
            return ZoneInfo(raw).key
        except (KeyError, OSError):  # a folder of zones is an OSError
            raise ValueError from None

    return _read(name, default, parse, "the name of a timezone, such as Europe/Berlin")
