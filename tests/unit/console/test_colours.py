"""The accent of console and chat: what is written in it, or on it, can be read, in light and in dark (WCAG 2.2, AA)."""

import re

import pytest
from django.conf import settings

from tests.support.sources import ROOT

pytestmark = pytest.mark.shapeless(reason="colours are the same on each")

WHITE, NEARLY_WHITE = "#ffffff", "#f9fafb"
# The theme's darkest grounds.
DARK, DARKER = "#111827", "#1f2937"


def luminance(colour: str) -> float:
    """Relative luminance, by WCAG's formula."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """From 1 to 21."""
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def test_words_in_and_on_the_accent_can_be_read():
    accent = settings.ACCENT
    pairs = [(accent["600"], ground) for ground in (WHITE, NEARLY_WHITE)]
    pairs += [(accent[weight], ground) for weight in ("400", "500") for ground in (DARK, DARKER)]
    (light, dark), (on_light, on_dark) = (
        re.search(rf"--{name}: light-dark\((#\w+), (#\w+)\)", CHAT).groups() for name in ("accent", "on-accent")
    )
    assert light == accent["600"]
    pairs += [(light, on_light), (dark, on_dark), (light, WHITE), (dark, "#18181b")]
    assert [(pair, round(contrast(*pair), 2)) for pair in pairs if contrast(*pair) < 4.5] == []


CHAT = (ROOT / "nanohost/chat/static/chat/chat.css").read_text()
