"""Axes of charts."""

from datetime import UTC, datetime

import pytest

from nanohost.console import charts
from nanohost.lib.text import duration

pytestmark = pytest.mark.shapeless(reason="it is pure")


@pytest.mark.parametrize("most", [0, 0.0004, 0.03, 0.3, 0.7, 1, 3.3, 8.5, 30, 50, 90, 4000])
def test_no_two_values_of_an_axis_of_seconds_are_told_alike(most):
    step = datetime(2026, 1, 1, tzinfo=UTC)
    series = [charts.Series(name="p50", css="p50", values=[most])]
    chart = charts.lines("Queue age", steps=[step], links=["/"], series=series, hours=1, show=duration)
    assert len(set(chart["ticks"])) == len(chart["ticks"]) == charts.MAX_TICKS + 1, chart["ticks"]
