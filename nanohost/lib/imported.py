"""Secrets that an import of nanobot's config.json has put into files, each for its owner alone."""

from django.conf import settings

from nanohost.lib.redaction import remember


def secret(name: str, *, begin: str) -> str:
    """What lies in the file that a variable stands for, ``begin`` and the file's name; empty if there is none."""
    if not name.startswith(begin):
        return ""
    try:
        file = settings.DATA_DIR / "secrets" / "nanobot" / name.removeprefix(begin).lower()
        value: str = file.read_text().strip()
    except (OSError, UnicodeError):
        return ""
    remember(name, value)
    return value
