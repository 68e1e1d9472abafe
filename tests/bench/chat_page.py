"""How long the chat page's scripts run until it is drawn and its list is there, in Debian's Chromium."""

import statistics
from typing import Any

from playwright.sync_api import expect

from tests.support.browser import Visitor, browser
from tests.support.hosts import PREPARED


def milliseconds(address: str, visits: int) -> float:
    """The median of so many visits, none of which has anything of the page from before."""
    with browser() as started:
        return statistics.median(_of_a_visit(started, address) for _ in range(visits))


def _of_a_visit(started: Any, address: str) -> float:
    visitor = Visitor(started, address)
    visitor.sign_in("admin", PREPARED["NANOHOST_ADMIN_PASSWORD"])
    page = visitor.context.new_page()
    session = visitor.context.new_cdp_session(page)
    session.send("Performance.enable")
    before = _script_seconds(session)
    page.goto("/chat/")
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    expect(page.locator("#conversations li").first).to_be_visible()
    took = _script_seconds(session) - before
    visitor.context.close()
    return took * 1000


def _script_seconds(session: Any) -> float:
    metrics = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    return float(metrics["ScriptDuration"])
