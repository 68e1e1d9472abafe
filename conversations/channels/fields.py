"""The settings of channels: what each platform wants to know, and whether what was entered makes sense.

No secret stands among them: a setting names the variable that has one.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError

from conversations.models import validate_url

# What the variables are called that hold secrets of channels. All of them are taken out of the environment of what the
# host starts.
SECRET_NAME = re.compile(r"CHANNEL_SECRET_[A-Z0-9_]{1,100}")

# And those for which an import of nanobot's config.json has put files into DATA_DIR/secrets/nanobot.
IMPORTED = "CHANNEL_SECRET_NANOBOT_"

MAX_CHARS = 500

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]{0,250}[A-Za-z0-9])?")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One of them. ``words``: what it is, for people. ``check``: raises ``ValidationError``, in words that follow its
    name. ``default``: what counts if nothing is entered."""

    name: str
    words: str
    check: Callable[[Any], None]
    default: Any = ""
    is_needed: bool = False


def check_settings(given: Mapping[str, Any], fields: Sequence[Setting], *, title: str) -> None:
    """Raise ``ValidationError``, whose messages say everything that is wrong."""
    wrong = []
    known = {each.name: each for each in fields}
    for name in sorted(set(given) - set(known)):
        wrong.append(f"{title} has no setting {name[:50]!r}; it has {', '.join(known)}.")
    for name, each in known.items():
        value = given.get(name)
        if value in (None, ""):
            if each.is_needed:
                wrong.append(f"{name} is needed: {each.words}.")
            continue
        try:
            each.check(value)
        except ValidationError as error:
            wrong += [f"{name}: {message}" for message in error.messages]
    if wrong:
        raise ValidationError(wrong)


def text(value: Any) -> None:
    """A line of text."""
    if not isinstance(value, str) or len(value) > MAX_CHARS or not value.isprintable():
        raise ValidationError(f"a text of at most {MAX_CHARS} printable characters is needed.")


def url(value: Any) -> None:
    """An address of a server."""
    text(value)
    validate_url(value)


def secret(value: Any) -> None:
    """The name of a variable that holds a secret."""
    if not isinstance(value, str) or not SECRET_NAME.fullmatch(value):
        raise ValidationError(
            "name the variable that has the secret, CHANNEL_SECRET_ and more of A-Z, 0-9 and _. The secret itself"
            " belongs in the environment, or in the file that CHANNEL_SECRET_…_FILE names."
        )


def host(value: Any) -> None:
    """The name of a host."""
    if not isinstance(value, str) or not _HOST.fullmatch(value):
        raise ValidationError("the name of a host is needed, such as mail.example.org.")


def port(value: Any) -> None:
    """A number of a port."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 65_536:
        raise ValidationError("a whole number from 1 to 65535 is needed.")


def digits(value: Any) -> None:
    """An id that is a number; a text, since some are too long for others."""
    if not isinstance(value, str) or not value.isascii() or not value.isdigit() or len(value) > 30:
        raise ValidationError('digits in quotation marks are needed, such as "123456789012345".')


def one_of(*choices: str) -> Callable[[Any], None]:
    """One of a few words."""

    def check(value: Any) -> None:
        if value not in choices:
            raise ValidationError(f"one of {', '.join(choices)} is needed.")

    return check


def groups(what: str) -> Setting:
    """The setting that says which messages of groups, as the platform calls them, wake the agent."""
    words = (
        f"which messages of {what} wake the agent: mention, those that mention or answer it; sticky, and others for an"
        " hour after it was spoken to; pattern, and those that pattern fits; all"
    )
    return Setting(name="groups", words=words, check=one_of("mention", "sticky", "pattern", "all"), default="mention")


def seconds(least: int, most: int) -> Callable[[Any], None]:
    """A whole number of seconds."""

    def check(value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValidationError(f"a whole number of seconds from {least} to {most} is needed.")

    return check


# Beside the one above; the host looks at them, and no platform does.
OF_GROUPS = (
    Setting(name="pattern", words="what wakes the agent, such as shop*|*price*; * is anything, | is or", check=text),
    Setting(
        name="ignored",
        words="what happens to other messages: drop, or context for its next turn",
        check=one_of("drop", "context"),
        default="drop",
    ),
)
