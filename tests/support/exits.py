"""What a host lets out: all that is stored, and all that the admin shows."""

import re
from collections import Counter
from pathlib import Path

import httpx2

from tests.support.hosts import Host

# Of pages that differ by their row alone, so many are read: of those that show words of models, and of others.
MAX_TOLD, MAX_OTHERS = 40, 2


def everything_stored(host: Host) -> str:
    """Every row of every table, and the files beside the database."""
    files = [path for path in Path(host.data_dir).iterdir() if path.is_file()]
    return host.everything_stored() + "".join(path.read_bytes().decode("latin-1") for path in files)


def everything_the_admin_shows(host: Host) -> str:
    """The admin's lists, and the pages of what they list."""
    with httpx2.Client(base_url=host.address, follow_redirects=True, timeout=60) as browser:
        browser.get("/admin/login/")
        form = {
            "username": "admin",
            "password": "correct horse battery",
            "csrfmiddlewaretoken": browser.cookies["csrftoken"],
            "next": "/admin/",
        }
        pages = [browser.post("/admin/login/", data=form).text]
        assert "Log out" in pages[0]
        seen = {"/admin/", "/admin/logout/"}
        kinds: Counter[str] = Counter()
        for _ in range(3):
            # The newest rows first: ids sort by time.
            for link in sorted(set(re.findall(r'href="(/admin/[^"?#]+)"', "".join(pages))) - seen, reverse=True):
                seen.add(link)
                kind = re.sub(r"(/admin/\w+/\w+/)[^/]+/", r"\1*/", link)
                kinds[kind] += 1
                told = re.fullmatch(r"/admin/(conversations/\w+|tools/toolcall)/\*/(?!history|delete).*", kind)
                if kinds[kind] <= (MAX_TOLD if told else MAX_OTHERS):
                    pages.append(browser.get(link).text)
        assert [link for link in seen if re.search("/conversations/turn/[0-9a-f-]{36}/", link)]
        return "".join(pages)
