"""Text from outside, made fit for every database."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanohost.lib.text import UNSTORABLE, clip, storable

pytestmark = pytest.mark.shapeless(reason="pure functions")

# Hypothesis leaves lone surrogates out unless it is asked for them.
anything = st.text(st.characters())


@pytest.mark.parametrize(
    ("text", "stored"),
    [("a\0b", "a\ufffdb"), ("a\ud800b\udfff", "a\ufffdb\ufffd"), ("\U0001f600 é", "\U0001f600 é")],
    ids=["NUL", "lone surrogates", "nothing"],
)
def test_what_no_database_stores_is_replaced(text, stored):
    assert storable(text) == stored


@given(anything | st.text(st.sampled_from("a\0\ud800\udc00")))
def test_what_is_stored_is_utf_8_without_a_null(text):
    stored = storable(text)
    assert stored.encode("utf-8").decode("utf-8") == stored
    assert "\0" not in stored
    assert len(stored) == len(text)
    assert not UNSTORABLE.search(stored)


@given(st.text(), st.integers(0, 50))
def test_a_clipped_text_fits_and_is_a_beginning(text, limit):
    clipped = clip(text, limit)
    assert len(clipped.encode()) <= limit
    assert text.startswith(clipped)
    assert clipped == text or len(text[: len(clipped) + 1].encode()) > limit
