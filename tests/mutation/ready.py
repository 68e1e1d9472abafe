"""Has the database made: see :mod:`tests.mutation.forks`."""

import pytest


@pytest.mark.django_db
def test_there_is_a_database() -> None:
    """The fixture is all."""
