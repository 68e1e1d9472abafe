"""The chat in a real browser, on a host with real turns."""

import json
import re

import pytest
from playwright.sync_api import expect

from tests.support.browser import Visitor, browser, chromium
from tests.support.hosts import PREPARED, Host

pytestmark = pytest.mark.skipif(
    not chromium(), reason="there is no browser: install Debian's chromium, or set CHROMIUM"
)

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
    expect(visitor.page.get_by_role("button", name="Send")).to_be_visible()
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
    page.locator("#conversations li").first.click()
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


HOSTILE = [
    "<script>document.title='taken'</script>",
    "<img src=http://127.0.0.1:9/a.png onerror=\"document.title='taken'\">",
    "![seen](http://127.0.0.1:9/b.png)",
    "[click](javascript:document.title='taken')",
    "[click](data:text/html,<script>alert(1)</script>)",
    "[click]( \tjAvAsCrIpT:alert(1))",
    "<svg onload=\"document.title='taken'\"><a xlink:href='javascript:alert(1)'>x</a></svg>",
    "<iframe src=http://127.0.0.1:9/></iframe><object data=http://127.0.0.1:9/></object>",
    "<style>@import 'http://127.0.0.1:9/c.css'; * { background: url(http://127.0.0.1:9/d.png) }</style>",
    "<form action=http://127.0.0.1:9/><button>x</button></form><base href=http://127.0.0.1:9/>",
    "<math><mtext><table><mglyph><style><img src=x onerror=\"document.title='taken'\">",
    "`<img src=x onerror=alert(1)>` **<b onclick=alert(1)>bold</b>**",
    "[x]: http://127.0.0.1:9/ 'title\" onmouseover=\"alert(1)'\n\n[x]",
    '<a href="http://127.0.0.1:9/" ping="http://127.0.0.1:9/ping" target=_top>x</a>',
    "<!--><img src=x onerror=\"document.title='taken'\">-->",
    "|a|\n|-|\n|<img src=x onerror=\"document.title='taken'\">|",
]


def test_nothing_that_a_model_writes_runs_or_is_fetched(visitor):
    page = visitor.page
    say(page, scripted({"think": HOSTILE[0] + HOSTILE[1], "say": "\n\n".join(HOSTILE) + "\n\nThe end."}))
    expect(answers(page)).to_contain_text("The end.")
    page.reload()
    expect(answers(page)).to_contain_text("The end.")
    talk = page.locator("#talk")
    for tag in ("script", "img", "svg", "iframe", "object", "style", "form", "base", "math", "link", "video"):
        expect(talk.locator(tag)).to_have_count(0)
    links = talk.locator("a").evaluate_all("links => links.map(link => [link.href, link.target, link.rel])")
    assert links
    for href, target, rel in links:
        assert re.match(r"https?:|mailto:|$", href), href
        assert not href or (target, rel) == ("_blank", "noopener noreferrer nofollow")
    assert "taken" not in page.title()


def test_a_conversation_is_deleted(visitor):
    page = visitor.page
    say(page, "Delete me")
    expect(answers(page)).to_have_count(1)
    page.on("dialog", lambda dialog: dialog.accept())
    row = page.locator("#conversations li.current")
    row.get_by_role("button").click()
    expect(page.locator("#conversations li", has_text="Delete me")).to_have_count(0)
    expect(page.get_by_role("heading", name="New conversation")).to_be_visible()


@pytest.mark.parametrize("width", ["desktop", "phone"])
def test_everybody_can_use_it(started, house, width):
    visitor = signed_in(started, house, width)
    page = visitor.page
    assert (visitor.faults(), visitor.is_too_wide()) == ([], False)
    say(
        page,
        scripted(
            {"think": "Hm.", "say": "# A title\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```\ncode\n```\n" + "x" * 400}
        ),
    )
    expect(answers(page)).to_contain_text("code")
    expect(page.locator("table")).to_be_visible()
    assert (visitor.faults(), visitor.is_too_wide()) == ([], False)
    if width == "phone":
        page.get_by_role("button", name="Conversations").click()
        expect(page.locator("#conversations li").first).to_be_visible()
        assert (visitor.faults(), visitor.is_too_wide()) == ([], False)
    visitor.context.close()
    assert (visitor.complaints, visitor.strangers) == ([], [])


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
    expect(page.get_by_role("alert")).to_contain_text("not right")
    page.get_by_label("User name").fill("anna")
    page.get_by_label("Password").fill("a good password")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("no agent")
    house.sql("UPDATE agent_agent SET is_public = ? WHERE name = ? RETURNING name", True, "default")
    page.reload()
    say(page, "Hello")
    expect(answers(page)).to_have_count(1)
    expect(page.locator("#conversations li")).to_have_count(1)  # nothing of the admin's
    expect(page.get_by_role("link", name="Console")).to_have_count(0)
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in to chat")).to_be_visible()
    page.goto("/chat/")
    expect(page.get_by_role("heading", name="Sign in to chat")).to_be_visible()
    visitor.context.close()
    assert (visitor.complaints, visitor.strangers) == ([], [])
