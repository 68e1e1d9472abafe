"""A real browser on the console: Debian's Chromium, headless, driven by Playwright.

Whether there is one is said at the end of ``make test``; without one, the tests that need it are left out. Where both
are installed, it is the shell without windows, which takes two thirds of the processor time for the same pages.
``CHROMIUM`` names the program where it has another name or place.
"""

import os
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, Request, expect, sync_playwright

from tests.support.wait import wait_until

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome-stable", "google-chrome")

WIDTHS = {"desktop": (1280, 800), "phone": (390, 844)}

# Faults that keep somebody from using a page; those of axe's lesser grades are matters of taste here.
GRAVE = ("serious", "critical")
EVERY_GRADE = ("minor", "moderate", *GRAVE)

# What a page is to show comes by then, also where several tests share few processors.
expect.set_options(timeout=30_000)


def chromium() -> str | None:
    """The browser's path; None if there is none on this machine. Raises ValueError for a ``CHROMIUM`` that is none."""
    if named := os.environ.get("CHROMIUM"):
        if not shutil.which(named):
            raise ValueError(f"CHROMIUM={named}: there is no such program")
        return named
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser, ended with the block."""
    path = chromium()
    assert path, "there is no browser"
    with sync_playwright() as playwright:
        # Without its sandbox, which needs rights that a container's root lacks: it sees pages of the host alone.
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield started
        finally:
            started.close()


class Visitor:
    """Somebody at a browser, on one host. What the browser says against a page (a script that failed or was refused by
    the policy, a file that is missing) is collected in ``complaints``, requests to elsewhere in ``strangers``."""

    def __init__(self, started: Browser, address: str, *, width: str = "desktop") -> None:
        across, down = WIDTHS[width]
        self.address = address
        self.complaints: list[str] = []
        self.strangers: list[str] = []
        self.context: BrowserContext = started.new_context(
            viewport={"width": across, "height": down}, base_url=address, reduced_motion="reduce"
        )
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(30_000)
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self._note(request.url))
        self._asked: set[Request] = set()
        self.page.on("request", lambda request: self._asked.add(request))
        for ended in ("requestfinished", "requestfailed"):
            self.page.on(ended, lambda request: self._asked.discard(request))

    def wait_for_answers(self) -> None:
        """Return once the page has all its answers; looked at twice, as a script may ask again upon an answer."""

        def is_quiet() -> bool:
            return self.page.evaluate("true") and not self._asked  # evaluate: what happened meanwhile arrives with it

        wait_until(lambda: is_quiet() and is_quiet())

    def _note(self, url: str) -> None:
        if not url.startswith((self.address, "data:", "blob:")):
            self.strangers.append(url)

    def sign_in(self, name: str, password: str) -> None:
        """At the sign-in page, as a person does."""
        self.page.goto("/admin/")
        self.page.get_by_label(re.compile("username", re.I)).fill(name)
        self.page.get_by_label(re.compile("password", re.I)).fill(password)
        self.page.get_by_role("button", name=re.compile("log in|sign in", re.I)).click()
        self.page.wait_for_load_state()

    def resize(self, width: str) -> None:
        across, down = WIDTHS[width]
        self.page.set_viewport_size({"width": across, "height": down})

    def faults(self, grades: Collection[str] = GRAVE) -> list[str]:
        """What axe-core finds on the page, of these grades: each fault with the elements it is of."""
        # Beforehand it would load all styles again, for a rule that it does not look at, and sounds, of which none is
        # there.
        options = {"resultTypes": ["violations"], "preload": False}
        found: dict[str, Any] = Axe().run(self.page, options=options).response
        return [
            f"{fault['id']}: {fault['help']}: {', '.join(node['html'][:150] for node in fault['nodes'][:5])}"
            for fault in found["violations"]
            if fault["impact"] in grades
        ]

    def is_too_wide(self) -> bool:
        """Whether a person has to scroll sideways to see all of the page."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth > window.innerWidth + 1"))

    def photograph(self, path: Path, *, tallest: int = 1600) -> None:
        """Write the page as a PNG, at most so many pixels high, in a window of its height: bars stick to its edges."""
        path.parent.mkdir(parents=True, exist_ok=True)
        size = self.page.viewport_size
        assert size
        height = self.page.evaluate("Math.max(...[...document.querySelectorAll('*')].map(each => each.scrollHeight))")
        self.page.set_viewport_size({"width": size["width"], "height": min(tallest, max(height, size["height"]))})
        self.page.screenshot(path=path)
        self.page.set_viewport_size(size)
