"""The chat in a real browser, on a host with real turns."""

import gzip
import http.server
import json
import os
import re
import threading
import time
from pathlib import Path
from uuid import UUID

import pytest
from playwright.sync_api import expect

from agent.spending.book import FRESH_SECONDS
from tests.support.api_client import start
from tests.support.browser import EVERY_GRADE, WIDTHS, Visitor, browser, chromium
from tests.support.files import picture
from tests.support.hostile_texts import KINDS
from tests.support.hosts import PREPARED, ROOT, Host
from tests.support.wait import wait_until

pytestmark = pytest.mark.skipif(
    not chromium(), reason="there is no browser: install Debian's chromium, or set CHROMIUM"
)

PICTURES = os.environ.get("SCREENSHOTS")
PASSWORD = PREPARED["NANOHOST_ADMIN_PASSWORD"]


def scripted(*steps):
    return json.dumps({"script": steps})


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    running = Host(tmp_path_factory.mktemp("chat"), beat=False, NANOHOST_EXTRA_APPS="")
    running.start()
    try:
        yield running
    finally:
        running.kill()


@pytest.fixture(scope="module")
def started():
    with browser() as program:
        yield program


def signed_in(started, house, width="desktop"):
    visitor = Visitor(started, house.address, width=width)
    visitor.page.goto("/chat/")
    visitor.page.get_by_label("User name").fill("admin")
    visitor.page.get_by_label("Password").fill(PASSWORD)
    visitor.page.get_by_role("button", name="Sign in").click()
    # The page's script enables it once it listens.
    expect(visitor.page.get_by_role("button", name="Send")).to_be_enabled()
    return visitor


@pytest.fixture
def visitor(started, house):
    """The admin, signed in; whatever a test does, no script fails and nothing is asked of another host."""
    found = signed_in(started, house)
    yield found
    found.context.close()
    assert (found.complaints, found.strangers) == ([], [])


def say(page, text):
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_role("button", name="Send").click()


def do(page, what):
    """Something of the menu of the conversation that is shown."""
    page.locator("#conversations li.current").get_by_role("button").click()
    page.get_by_role("menuitem", name=what, exact=True).click()


def test_a_question_is_answered_and_the_conversation_is_in_the_list(visitor):
    page = visitor.page
    say(page, "Hello there, **friend**")
    expect(page.locator(".message.user")).to_contain_text("Hello there, **friend**")
    expect(page.locator(".message.assistant .text")).to_contain_text("Hello there")
    expect(page.locator("#conversations li.current")).to_contain_text("Hello there")
    assert re.fullmatch(r".*/chat/[0-9a-f-]{36}/", page.url)
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    page.reload()
    expect(page.locator(".message")).to_have_count(2)


def answers(page):
    return page.locator(".message.assistant .text")


def test_an_answer_that_comes_in_pieces_goes_on_after_the_page_was_loaded_again(visitor):
    page = visitor.page
    say(page, scripted({"say": " ".join(f"word{n}" for n in range(40)), "pace": 0.1}))
    expect(answers(page)).to_contain_text("word3")
    page.reload()
    expect(answers(page)).to_contain_text("word39", timeout=20_000)
    expect(answers(page)).to_have_count(1)
    assert answers(page).inner_text().split() == [f"word{n}" for n in range(40)]


def test_an_answer_is_stopped(visitor):
    page = visitor.page
    say(page, scripted({"sleep": 60, "say": "Too late."}))
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".problem")).to_contain_text("No answer")
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    expect(page.get_by_role("button", name="Try again")).to_be_visible()


def test_two_tabs_agree(visitor):
    page = visitor.page
    say(page, "In the first tab")
    expect(answers(page)).to_have_count(1)
    other = visitor.context.new_page()
    other.goto(page.url)
    expect(other.locator(".message")).to_have_count(2)
    say(other, "And in the second one")
    expect(answers(other)).to_have_count(2)
    expect(page.locator(".message")).to_have_count(4)
    for each in (page, other):  # what it shows now is what is stored
        expect(each.get_by_role("button", name="Stop")).to_be_hidden()
        expect(each.locator("#talk .status")).to_have_count(0)
    assert page.locator("#talk").inner_text() == other.locator("#talk").inner_text()


def test_what_is_sent_without_a_connection_is_sent_once_when_it_is_back(visitor):
    page = visitor.page
    say(page, "Hello")
    expect(answers(page)).to_have_count(1)
    visitor.context.set_offline(True)
    expect(page.get_by_role("status")).to_contain_text("You are offline")
    say(page, "Said offline")
    expect(page.locator(".message.user").last).to_contain_text("Not sent yet")
    page.close()
    visitor.context.set_offline(False)
    visitor.page = page = visitor.context.new_page()
    page.goto("/chat/")
    page.locator("#conversations li a").first.click()
    expect(answers(page)).to_have_count(2)
    expect(page.locator(".message.user", has_text="Said offline")).to_have_count(1)
    page.reload()
    expect(answers(page)).to_have_count(2)
    visitor.complaints[:] = [each for each in visitor.complaints if "ERR_INTERNET_DISCONNECTED" not in each]


def test_an_approval_is_decided_in_the_talk(visitor, house):
    house.allow("time")
    house.sql("UPDATE tools_toolsetting SET approval = ? WHERE name = ? RETURNING name", "always", "time")
    page = visitor.page
    say(page, scripted({"call": [{"name": "time"}]}, {"say": "{results}"}))
    page.get_by_role("button", name="Approve").click()
    expect(answers(page).last).to_contain_text("20")
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()  # what it shows now is what is stored
    page.get_by_text("Tool: time").click()
    expect(page.locator("details[open] pre").first).to_be_visible()


def test_a_question_is_answered_in_the_talk(visitor, house):
    house.allow("ask")
    page = visitor.page
    asks = {"name": "ask", "arguments": {"question": "Which <b>colour</b>?", "options": ["Red", "Blue"]}}
    say(page, scripted({"call": [asks]}, {"say": "You chose {results}"}))
    expect(page.get_by_text("Which <b>colour</b>?", exact=True)).to_be_visible()
    page.reload()
    page.get_by_role("button", name="Blue", exact=True).click()
    expect(answers(page).last).to_contain_text('"answer": "Blue"')
    say(page, scripted({"call": [asks]}, {"say": "You chose {results}"}))
    page.get_by_role("textbox", name="Another answer").fill("Green")
    page.get_by_role("button", name="Answer", exact=True).click()
    expect(answers(page).last).to_contain_text('"answer": "Green"')


ACTIVE = "script, img, svg, iframe, object, embed, style, form, base, link, meta, video, audio, input, select"
KINDS_A_MESSAGE = 16


def test_nothing_that_a_model_writes_runs_or_is_fetched(visitor):
    """Nor is it asked of another host, which the fixture sees; and the page's policy is not what it takes."""
    page = visitor.page
    page.on("dialog", lambda dialog: visitor.complaints.append(dialog.message) or dialog.dismiss())
    assert len(KINDS) >= 60
    parts = [KINDS[n : n + KINDS_A_MESSAGE] for n in range(0, len(KINDS), KINDS_A_MESSAGE)]
    for number, kinds in enumerate(parts, start=1):
        text = "\n\n".join(kinds)
        say(page, scripted({"think": text, "say": f"{text}\n\nThe end of {number}."}))
        expect(answers(page).last).to_contain_text(f"The end of {number}.")
        expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    page.reload()
    expect(answers(page).last).to_contain_text(f"The end of {len(parts)}.")
    expect(answers(page)).to_have_count(len(parts))
    expect(page.locator("#talk .hljs-comment").first).to_be_attached()
    for summary in page.locator("#talk details > summary").all():
        summary.dispatch_event("click")
    expect(page.locator("#talk").locator(ACTIVE)).to_have_count(0)
    attributes = page.locator("#talk *").evaluate_all("all => all.flatMap(each => each.getAttributeNames())")
    assert not [name for name in attributes if name.startswith("on") or name in ("src", "srcset", "ping", "background")]
    links = page.locator("#talk a").evaluate_all("links => links.map(link => [link.href, link.target, link.rel])")
    assert len(links) > 5
    for href, target, rel in links:
        assert re.match(r"https?:|mailto:|$", href), href
        assert not href or (target, rel) == ("_blank", "noopener noreferrer nofollow")
    assert page.title() != "taken"


def row(page, text):
    return page.locator("#conversations li", has_text=text)


def test_a_conversation_is_renamed_pinned_archived_and_found(visitor):
    page = visitor.page
    say(page, "Of roses")
    expect(answers(page)).to_have_count(1)
    do(page, "Rename")
    page.get_by_role("dialog").get_by_role("textbox").fill("Gardens <b>")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Gardens <b>")).to_be_visible()
    do(page, "Pin")
    expect(page.locator("#conversations li").first).to_have_text("Pinned")
    expect(page.locator("#conversations li").nth(1)).to_contain_text("Gardens")
    page.get_by_label("Search conversations").fill("gARD")
    expect(page.locator("#conversations li[data-id]")).to_have_count(1)
    page.get_by_label("Search conversations").fill("nothing of that")
    expect(page.locator("#conversations")).to_have_text("No results.")
    page.get_by_label("Search conversations").fill("")
    do(page, "Archive")
    expect(row(page, "Gardens")).to_have_count(0)
    page.get_by_role("button", name="Archive").click()
    expect(row(page, "Gardens")).to_have_count(1)
    do(page, "Remove from the archive")
    expect(page.locator("#conversations")).to_have_text("Nothing is archived.")
    page.get_by_role("button", name="Archive").click()
    expect(row(page, "Gardens")).to_have_count(1)


# Renames the conversation as another of their tabs does: the list of this one does not hear of it.
RENAME = """title => fetch(location.pathname.replace("/chat/", "/api/v1/conversations/").replace(/\\/$/, ""), {
    method: "PATCH",
    body: JSON.stringify({ title }),
    headers: {
        "Content-Type": "application/json",
        "X-CSRFToken": document.querySelector("input[name=csrfmiddlewaretoken]").value,
    },
}).then((answer) => answer.status)"""


def test_a_conversation_is_exported_under_the_name_that_it_has_by_then(visitor):
    page = visitor.page
    say(page, "Keep that")
    expect(answers(page)).to_have_count(1)
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    expect(row(page, "Keep that")).to_have_count(1)
    assert page.evaluate(RENAME, "Keep this") == 200
    texts = {}
    for what in ("Markdown", "JSON"):
        with page.expect_download() as download:
            do(page, f"Export as {what}")
        texts[what] = download.value.path().read_text()
        assert download.value.suggested_filename == f"Keep this.{'md' if what == 'Markdown' else 'json'}"
    assert re.search("# Keep this\n\n## You, .+\n\nKeep that\n\n## default, ", texts["Markdown"])
    assert [each["role"] for each in json.loads(texts["JSON"])["messages"]] == ["USER", "ASSISTANT"]


def test_a_question_is_changed_in_a_branch_and_an_answer_asked_for_again(visitor):
    page = visitor.page
    say(page, "First")
    expect(answers(page)).to_have_count(1)
    say(page, "Second")
    expect(answers(page)).to_have_count(2)
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    source = page.url
    asked = page.locator(".message.user").last
    asked.hover()
    asked.get_by_role("button", name="Edit").click()
    page.get_by_label("Edit the message").fill("Another")
    page.get_by_role("button", name="Send in a branch").click()
    expect(page.locator(".message.user .text")).to_have_text(["First", "Another"])
    expect(answers(page).last).to_contain_text("Another")
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    assert page.url != source
    page.get_by_role("link", name="Branch of").click()
    expect(page.locator(".message.user .text")).to_have_text(["First", "Second"])
    assert page.url == source
    answer = page.locator(".message.assistant").first
    answer.hover()
    answer.get_by_role("button", name="Retry").click()
    expect(page.locator(".message.user .text")).to_have_text(["First"])
    expect(answers(page)).to_contain_text("First")
    assert page.url != source


def test_a_thumb_with_its_comment_is_kept_changed_seen_in_the_console_and_taken_back(visitor):
    page = visitor.page
    say(page, "Name a flower")
    expect(answers(page)).to_have_count(1)
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()

    def thumb(name, **state):
        page.locator(".message.assistant").hover()
        return page.get_by_role("button", name=name, **state)

    thumb("Good answer").click()
    expect(thumb("Good answer", pressed=True)).to_have_count(1)
    thumb("Bad answer").click()
    expect(thumb("Good answer", pressed=False)).to_have_count(1)
    page.get_by_role("textbox", name="Why?").fill("That is <b>no</b> flower")
    page.get_by_role("button", name="Tell").click()
    expect(page.get_by_text("Thank you.")).to_be_visible()
    page.reload()
    expect(thumb("Bad answer", pressed=True)).to_have_count(1)

    turn = page.locator(".message.assistant").get_attribute("data-turn")
    console = visitor.context.new_page()
    console.goto(f"/admin/conversations/turn/{turn}/change/")
    seen = console.locator("#result_list tbody tr")
    address = console.get_by_role("link", name="Feedback on this turn").get_attribute("href")
    console.goto(address)
    expect(seen).to_have_count(1)
    expect(seen).to_contain_text("That is <b>no</b> flower")
    expect(seen).to_contain_text("bad")
    thumb("Bad answer").click()
    expect(thumb("Bad answer", pressed=False)).to_have_count(1)
    console.reload()
    expect(seen).to_have_count(0)
    console.close()


RICH = r"""
It is $E = mc^2$, and it costs $5 to $10. \(a^2\) and

$$
\begin{aligned} x &= 1 \\ y &= 2 \end{aligned}
$$

```python
def hello(): return "world"
```

```nosuch
<b>plain</b>
```

| a | b |
|---|---|
| 1 | 2 |

![a cat](http://127.0.0.1:9/cat.png) and [a link](http://127.0.0.1:9/)
"""


def test_formulas_code_tables_and_pictures_are_shown(visitor):
    page = visitor.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    say(page, scripted({"say": RICH}))
    expect(answers(page).locator("math")).to_have_count(3)
    expect(answers(page)).to_contain_text("it costs $5 to $10.")
    expect(answers(page).locator(".hljs-keyword").first).to_have_text("def")
    expect(answers(page).locator("pre").nth(1)).to_have_text("<b>plain</b>\n")
    expect(answers(page).get_by_role("region", name="Table").locator("td")).to_have_text(["1", "2"])
    answers(page).get_by_role("button", name="Copy").first.click()
    expect(answers(page).get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == 'def hello(): return "world"\n'
    picture = answers(page).locator("details.picture")
    expect(picture.get_by_role("link")).to_be_hidden()
    picture.get_by_text("Picture: a cat").click()
    expect(picture.get_by_role("link")).to_have_attribute("href", "http://127.0.0.1:9/cat.png")
    expect(page.locator("#talk img")).to_have_count(0)


def test_files_come_by_button_by_paste_and_by_drag(visitor):
    page = visitor.page
    page.locator("#files").set_input_files(
        [
            {"name": "a.png", "mimeType": "image/png", "buffer": picture(size=(300, 200))},
            {"name": "note.txt", "mimeType": "text/plain", "buffer": b"The sum is 42."},
        ]
    )
    drop = """([field, kind, name, text]) => {
        const data = new DataTransfer();
        data.items.add(new File([text], name, { type: "text/plain" }));
        const options = { bubbles: true, cancelable: true };
        const event = kind === "paste" ? new ClipboardEvent(kind, { ...options, clipboardData: data })
            : new DragEvent(kind, { ...options, dataTransfer: data });
        document.querySelector(field).dispatchEvent(event);
    }"""
    page.evaluate(drop, ["#message", "paste", "pasted.txt", "Pasted."])
    page.evaluate(drop, ["#talk", "drop", "dropped.txt", "Dropped."])
    page.evaluate(drop, ["#talk", "drop", "one too many.txt", "x"])
    attached = page.locator("#attached li")
    expect(attached).to_have_count(5)
    page.get_by_role("button", name="Remove one too many.txt").click()
    expect(attached).to_have_count(4)
    say(page, "Look")
    asked = page.locator(".message.user")
    expect(asked.locator("a[download]")).to_have_count(4)
    expect(answers(page)).to_contain_text("The sum is 42.")
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    small = asked.get_by_role("img", name="a.png")
    small.scroll_into_view_if_needed()  # a lazy image loads when it is seen, and that takes a moment
    expect(small).to_have_js_property("naturalWidth", 256)
    with page.expect_download() as download:
        asked.get_by_text("note.txt").click()
    assert download.value.path().read_bytes() == b"The sum is 42."
    page.locator("#files").set_input_files([{"name": "x.bin", "mimeType": "", "buffer": b"\0\1\2"}])
    say(page, "And this")
    expect(page.get_by_role("status")).to_contain_text("x.bin")
    expect(attached).to_have_count(1)  # it is there again, with its words
    expect(page.get_by_label("Message", exact=True)).to_have_value("And this")
    visitor.complaints[:] = [each for each in visitor.complaints if "400 (Bad Request)" not in each]


def test_a_schedule_of_the_talk_is_a_chip(visitor, house):
    house.allow("schedule")
    page = visitor.page
    daily = {"action": "create", "prompt": "Say hello", "description": "Greeting", "cron": "0 9 * * *"}
    say(page, scripted({"call": [{"name": "schedule", "arguments": daily}]}, {"say": "Done."}))
    chip = page.locator(".chip")
    expect(chip).to_contain_text("Greeting, next")
    chip.locator("summary").click()
    chip.get_by_role("button", name="Pause").click()
    expect(chip).to_contain_text("Greeting, paused")
    chip.locator("summary").click()
    chip.get_by_role("button", name="Cancel it").click()
    expect(chip).to_have_count(0)


def test_ten_thousand_messages_are_read_through_a_window(visitor, house):
    page = visitor.page
    say(page, "Hello")
    expect(answers(page)).to_have_count(1)
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    conversation = UUID(page.url.rstrip("/").rpartition("/")[2])
    fill_up(house, conversation, 10_000)
    page.reload()
    rows = page.locator(".message")
    expect(rows).to_have_count(50)
    expect(rows.last).to_contain_text("message 10002")
    seen = 0
    while not page.locator(".message[data-seq='9000']").count():
        page.locator("#talk").evaluate("talk => (talk.scrollTop = 0)")
        expect(page.locator(f".message[data-seq='{9953 - 50 * (seen + 1)}']")).to_have_count(1)
        seen += 1
        assert rows.count() <= 300
    say(page, "At the end again")
    expect(page.locator(".message.user").last).to_contain_text("At the end again")
    expect(answers(page).last).to_contain_text("At the end again")
    assert rows.count() <= 300


def fill_up(house, conversation, count):
    """As many messages more, past the host."""
    made = house.manage(
        "shell",
        "-c",
        "from conversations.models import *\n"
        f"c = Conversation.objects.get(pk='{conversation}')\n"
        "said = (Message(conversation=c, seq=n, role=('user', 'assistant')[n % 2], content=f'message {n}')"
        f" for n in range(c.next_seq, c.next_seq + {count}))\n"
        "Message.objects.bulk_create(said)\n"
        f"end = c.next_seq + {count}\n"
        "Conversation.objects.filter(pk=c.pk).update(next_seq=end, starts_at_seq=end)",
    )
    assert made.returncode == 0, made.stderr


def test_the_page_is_small(visitor):
    asked = []
    page = visitor.context.new_page()
    page.route("**/*", lambda route: route.continue_())  # nothing is taken from what was loaded before
    page.on("requestfinished", lambda request: asked.append(request))
    page.goto("/chat/")
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    expect(page.locator("#conversations li").first).to_be_visible()
    page.wait_for_load_state("networkidle")
    sizes = {request.url: sum(request.sizes()[each] for each in WIRE) for request in asked}
    assert any("purify" in url for url in sizes)
    assert sum(sizes.values()) <= 150_000, sizes


WIRE = ("responseBodySize", "responseHeadersSize")


# Of functions, until the page is drawn and its list is there. `make bench` says how long that takes.
MAX_CALLS = 5_000


def test_little_runs_before_the_page_is_drawn(visitor):
    page = visitor.context.new_page()
    session = visitor.context.new_cdp_session(page)
    session.send("Profiler.enable")
    session.send("Profiler.startPreciseCoverage", {"callCount": True, "detailed": False})
    page.goto("/chat/")
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    expect(page.locator("#conversations li").first).to_be_visible()
    scripts = session.send("Profiler.takePreciseCoverage")["result"]
    calls = {
        script["url"]: sum(function["ranges"][0]["count"] for function in script["functions"]) for script in scripts
    }
    assert any("/chat/chat.js" in url for url in calls)
    assert sum(calls.values()) <= MAX_CALLS, calls


def test_what_is_sent_packed_is_what_stands_beside_it():
    packed = sorted((ROOT / "nanohost/chat/static/chat/vendor").rglob("*.gz"))
    assert len(packed) == 4
    for path in packed:
        assert gzip.decompress(path.read_bytes()) == path.with_suffix("").read_bytes(), path


def test_a_conversation_is_shared_and_the_link_revoked(visitor, started, house):
    page = visitor.page
    say(page, scripted({"say": "Shared **words** and ![a cat](http://127.0.0.1:9/cat.png)"}))
    expect(answers(page)).to_contain_text("Shared words")
    do(page, "Share")
    page.get_by_role("button", name="Make a link").click()
    link = page.get_by_label("Link", exact=True).input_value()
    assert link.startswith(f"{house.address}/chat/shared/nh_share_")
    page.get_by_role("button", name="Done").click()
    stranger = Visitor(started, house.address)
    stranger.page.goto(link)
    expect(stranger.page.locator("strong")).to_have_text("words")
    assert (stranger.faults(), stranger.is_too_wide(), stranger.context.cookies()) == ([], False, [])
    page.get_by_role("button", name="Shared links").click()
    page.get_by_role("button", name="Revoke").click()
    expect(page.get_by_role("list", name="Links")).to_contain_text("revoked")
    assert stranger.page.goto(link).status == 404
    stranger.context.close()
    assert (stranger.complaints, stranger.strangers) == (
        ["Failed to load resource: the server responded with a status of 404 (Not Found)"],
        [],
    )
    assert link.rstrip("/").rpartition("/")[2] not in house.log_text()


@pytest.fixture
def shop():
    """A page of another origin, which the test fills."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = self.server.page.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever).start()
        yield server
        server.shutdown()


def test_it_is_embedded_in_a_page_of_another_origin_that_the_key_allows(visitor, started, house, shop):
    origin = f"http://127.0.0.1:{shop.server_port}"
    made = house.manage(
        "keys", "create", "--owner", "admin", "--agents", "default", "--origins", origin, "--per-minute", "600"
    )
    assert made.returncode == 0, made.stderr
    prefix = re.search("nh_([a-z0-9]+)_", made.stdout)[1]
    shop.page = (
        "<!doctype html><html lang=en><title>Shop</title><h1>Shop</h1>"
        f'<script src="{house.address}/static/chat/embed.js" data-key="{prefix}" data-label="Ask us"></script>'
    )
    guest = Visitor(started, origin)
    guest.page.goto(origin)
    guest.page.get_by_role("button", name="Ask us").click()
    frame = guest.page.frame_locator("iframe")
    say(frame, "Hello from outside")
    expect(answers(frame)).to_contain_text("Hello from outside")
    expect(frame.get_by_role("button", name="Stop")).to_be_hidden()
    assert guest.faults() == []
    guest.page.reload()
    guest.page.get_by_role("button", name="Ask us").click()
    expect(answers(frame)).to_contain_text("Hello from outside")  # this tab goes on with it
    assert (guest.complaints, guest.context.cookies()) == ([], [])

    # Its budget ends it: whoever visits is told, and nothing is asked of a model.
    house.sql(
        "INSERT INTO agent_budget (name, whose, api_key_id, measure, every, amount, is_on, created_at)"
        " SELECT 'the shop', 'key', id, 'tokens', 'day', 0, ?, created_at FROM accounts_apikey WHERE prefix = ?",
        *(True, prefix),
    )
    key = re.search(r"nh_[\w-]+", made.stdout)[0]
    with house.client(key=key) as api:
        chat = f"/conversations/{start(api)}/chat"
        # Each of the host's processes looks at its budgets once a second.
        all_know_at = time.monotonic() + FRESH_SECONDS + 0.5
        wait_until(
            lambda: api.post(chat, json={"message": "Hello?"}).status_code >= 400 and time.monotonic() > all_know_at
        )
    before = house.sql("SELECT count(*) AS turns FROM conversations_turn")
    say(frame, "One more?")
    expect(frame.locator("body")).to_contain_text("API key's daily budget")
    assert house.sql("SELECT count(*) AS turns FROM conversations_turn") == before
    guest.complaints.clear()  # the refusal's own line
    house.sql("UPDATE accounts_apikey SET allowed_origins = ? WHERE prefix = ?", '["https://other.example"]', prefix)
    guest.page.reload()
    with guest.page.expect_console_message(lambda said: "frame-ancestors" in said.text):
        guest.page.get_by_role("button", name="Ask us").click()
    expect(frame.locator("#say")).to_have_count(0)
    guest.context.close()


def test_a_conversation_is_deleted(visitor):
    page = visitor.page
    say(page, "Delete me")
    expect(answers(page)).to_have_count(1)
    do(page, "Delete")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.locator("#conversations li", has_text="Delete me")).to_have_count(0)
    expect(page.get_by_role("heading", name="New conversation")).to_be_visible()


TRIP = r"""
Three trains leave before noon:

| leaves | arrives | changes |
|---|---|---|
| 08:14 | 12:02 | 1 |
| 09:32 | 13:10 | 0 |
| 11:14 | 15:02 | 1 |

I would take the one at **09:32**. Over $d = 480$ km its mean speed is $v = \frac{d}{t} \approx 132$ km/h.

```python
def mean_speed(kilometres: float, hours: float) -> float:
    return kilometres / hours
```
"""


@pytest.mark.skipif(not PICTURES, reason="SCREENSHOTS names no folder: make screenshots does")
def test_the_chat_is_photographed(started, house):
    house.allow("time")
    visitor = signed_in(started, house)
    page = visitor.page
    say(page, "What is on my list for Monday?")
    expect(answers(page)).to_have_count(1)
    page.locator("#new").click()
    say(page, scripted({"think": "Trains first.", "call": [{"name": "time"}]}, {"say": TRIP}))
    expect(answers(page).last.locator("math")).to_have_count(2)
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    do(page, "Rename")
    page.get_by_role("dialog").get_by_role("textbox").fill("Trains on Monday")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Trains on Monday")).to_be_visible()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width in WIDTHS:
            visitor.resize(width)
            assert not visitor.is_too_wide()
            page.screenshot(path=Path(PICTURES) / f"chat{'-dark' if scheme == 'dark' else ''}.{width}.png")
    visitor.context.close()


EVERYTHING = [
    {"think": "Hm.", "call": [{"name": "schedule", "arguments": {"action": "list"}}]},
    {"say": RICH + "\n# A title\n\n> words\n\n1. one\n\n" + "x" * 400},
]


@pytest.mark.embedded(reason="its pages are those of the other shape")
def test_everybody_can_use_it(started, house):
    """Wide and as a phone of 320 pixels, light and dark: axe finds no fault at all, and nobody scrolls sideways."""
    house.allow("schedule")
    visitor = signed_in(started, house)
    page = visitor.page

    def looked_at():
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert (visitor.faults(EVERY_GRADE), visitor.is_too_wide()) == ([], False)

    for width in (1280, 320):
        page.set_viewport_size({"width": width, "height": 800})
        page.goto("/chat/")
        expect(page.locator("#conversations li").first).to_be_attached()
        looked_at()
        say(page, scripted(*EVERYTHING))
        expect(answers(page).last.locator("math")).to_have_count(3)
        expect(page.get_by_role("button", name="Stop")).to_be_hidden()
        expect(page.locator(".hljs-keyword").first).to_be_visible()
        for summary in page.locator("#talk details > summary").all():
            summary.click()
        looked_at()
        if width == 320:
            page.get_by_role("button", name="Conversations").click()
            expect(page.locator("#conversations li a").first).to_be_visible()
            looked_at()
        page.locator("#conversations li.current").get_by_role("button").click()
        looked_at()
        page.get_by_role("menuitem", name="Share").click()
        expect(page.get_by_role("dialog")).to_be_visible()
        looked_at()
        page.keyboard.press("Escape")
    visitor.context.close()
    assert (visitor.complaints, visitor.strangers) == ([], [])


def test_the_keyboard_is_enough(visitor):
    page = visitor.page
    page.keyboard.press("Control+Shift+O")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.keyboard.type("By the keyboard")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("alone")
    page.keyboard.press("Enter")
    expect(page.locator(".message.user .text")).to_have_text("By the keyboard\nalone")
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    expect(answers(page)).to_have_count(1)
    page.locator("#conversations li.current a").focus()
    page.keyboard.press("Tab")
    expect(page.locator("#conversations li.current .more")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("menuitem", name="Rename")).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(page.get_by_role("menuitem", name="Delete")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#conversations li.current .more")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    page.keyboard.type("Renamed by keys")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Renamed by keys")).to_be_visible()


@pytest.fixture
def listed(visitor):
    """The page, with a list whose current conversation can be given another title from elsewhere."""
    page = visitor.page
    say(page, "As it was called")
    expect(answers(page)).to_have_count(1)
    expect(page.locator("#talk .status")).to_have_count(0)
    other = visitor.context.new_page()
    other.goto(page.url)
    expect(other.locator("#conversations li.current")).to_contain_text("As it was called")

    def rename(title):
        do(other, "Rename")
        other.get_by_label("Name", exact=True).fill(title)
        other.get_by_role("button", name="Save").click()
        expect(page.locator("#conversations li.current a")).to_have_text(title)

    return page, rename


def test_a_list_that_is_drawn_anew_leaves_the_focus_and_an_open_menu_where_they_are(listed):
    page, rename = listed
    link, more = (page.locator(f"#conversations li.current {each}") for each in ("a", ".more"))
    link.focus()
    rename("Called otherwise")
    expect(link).to_be_focused()
    page.keyboard.press("Tab")
    expect(more).to_be_focused()
    rename("And again")
    expect(more).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("menuitem", name="Rename")).to_be_focused()
    rename("While a menu is open")
    expect(page.get_by_role("menuitem", name="Rename")).to_be_focused()
    page.keyboard.press("Escape")
    expect(more).to_be_focused()
    assert more.get_attribute("aria-label") == "More actions for While a menu is open"


def test_who_archives_a_conversation_by_the_keyboard_stands_in_the_list_afterwards(listed):
    page, _ = listed
    page.locator("#conversations li.current .more").focus()
    page.keyboard.press("Enter")
    page.get_by_role("menuitem", name="Archive", exact=True).press("Enter")
    expect(page.locator("#conversations li.current")).to_have_count(0)
    assert page.evaluate("document.activeElement.closest('nav') !== null")


def test_an_answer_that_was_overtaken_does_not_show_the_list_as_it_was(visitor):
    """The first look at the list is answered last."""
    page = visitor.page
    # It has asked for its list by now: the first request to be held is the reloaded page's.
    expect(page.locator("#conversations li").first).to_be_visible()
    held = []
    page.route("**/conversations?limit=50*", lambda route: held.append(route) if not held else route.continue_())
    page.reload()
    wait_until(lambda: page.evaluate("true") and held)
    before = held[0].fetch()
    say(page, "Newer than the first look")
    expect(page.locator("#conversations li.current")).to_contain_text("Newer than the first look")
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    expect(page.locator("#talk .status")).to_have_count(0)
    with page.expect_response(lambda answer: answer.request == held[0].request) as late:
        held[0].fulfill(response=before)
    assert late.value.ok
    page.evaluate("fetch('/health/live').then((answer) => answer.text())")  # what is asked later is answered later
    assert "Newer than the first look" in page.locator("#conversations li.current").inner_text()


def test_words_go_from_right_to_left_where_they_are_read_so(visitor):
    page = visitor.page
    hebrew = "\u05e9\u05dc\u05d5\u05dd"
    say(page, scripted({"say": f"{hebrew} **{hebrew}**\n\n```python\nx = 1\n```\n"}))
    text = answers(page)
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    expect(page.locator("#talk .status")).to_have_count(0)
    expect(text.locator("strong")).to_have_text(hebrew)
    direction = "node => getComputedStyle(node).direction"
    assert text.evaluate(direction) == "rtl"
    assert text.locator("pre").evaluate(direction) == "ltr"
    page.evaluate("document.documentElement.dir = 'rtl'")
    side, talk = (page.locator(each).bounding_box() for each in ("#side", "#talk"))
    assert side["x"] > talk["x"]
    assert not visitor.is_too_wide()


def test_somebody_without_a_role_chats_with_public_agents_alone_and_signs_out(started, house):
    made = house.manage(
        "shell",
        "-c",
        "from django.contrib.auth.models import User; User.objects.create_user('anna', password='a good password')",
    )
    assert made.returncode == 0, made.stderr
    house.sql("UPDATE agent_agent SET is_public = ? WHERE name = ? RETURNING name", False, "default")
    visitor = Visitor(started, house.address)
    page = visitor.page
    page.goto("/chat/")
    page.get_by_label("User name").fill("anna")
    page.get_by_label("Password").fill("not this")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("is wrong")
    page.get_by_label("User name").fill("anna")
    page.get_by_label("Password").fill("a good password")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("no agent")
    house.sql("UPDATE agent_agent SET is_public = ? WHERE name = ? RETURNING name", True, "default")
    page.reload()
    say(page, "Hello")
    expect(answers(page)).to_have_count(1)
    expect(page.locator("#conversations li[data-id]")).to_have_count(1)  # nothing of the admin's
    expect(page.get_by_role("link", name="Console")).to_have_count(0)
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    expect(page.locator("#talk .status")).to_have_count(0)
    visitor.wait_for_answers()  # what is answered after the sign-out is refused
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in to chat")).to_be_visible()
    page.goto("/chat/")
    expect(page.get_by_role("heading", name="Sign in to chat")).to_be_visible()
    visitor.context.close()
    assert (visitor.complaints, visitor.strangers) == ([], [])
