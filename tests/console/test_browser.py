"""The console in a real browser, on a host with real turns: what people do in it, and whether they can see it all.

``SCREENSHOTS=folder`` has the walk over all pages write what it sees, in both widths: ``make screenshots``.
"""

import json
import os
import re
from pathlib import Path
from uuid import UUID

import pytest
from playwright.sync_api import expect

from tests.support.api_client import start
from tests.support.browser import WIDTHS, Visitor, browser, chromium
from tests.support.hosts import PREPARED, Host
from tests.support.wait import wait_until

pytestmark = pytest.mark.skipif(
    not chromium(), reason="there is no browser: install Debian's chromium, or set CHROMIUM"
)

# What several processes have a part in is tried on both shapes.
of_the_page = pytest.mark.embedded(reason="what a browser makes of a page; the views are tried on both")

PASSWORD = PREPARED["NANOHOST_ADMIN_PASSWORD"]
PICTURES = os.environ.get("SCREENSHOTS")

HOSTILE = (
    "<script>document.title = 'taken'</script><img src=http://127.0.0.1:9/a.png onerror=\"document.title='taken'\">"
    "![seen](http://127.0.0.1:9/b.png) [click](javascript:alert(1)) \u202e drawkcab"
)


def scripted(*steps):
    return json.dumps({"script": steps})


@pytest.fixture(scope="module")
def console(tmp_path_factory):
    """A host in which some things have happened: answers, tools, a refusal, a failure, text that means ill."""
    running = Host(tmp_path_factory.mktemp("console"), beat=True, NANOHOST_EXTRA_APPS="")
    if PICTURES:
        filled = Host(running.data_dir, DEBUG="true").manage("fill", "--conversations", "400")
        assert filled.returncode == 0, filled.stderr
        running.sql("DELETE FROM tools_toolsetting WHERE NOT enabled")  # of tests, which the template was prepared with
    running.start()
    try:
        running.allow("schedule")
        with running.client() as api:
            conversation = start(api)
            chat = f"/conversations/{conversation}/chat"
            for message in (
                "Good morning! What can you do?",
                "What time is it?",
                scripted(
                    {"call": [{"name": "http_get", "arguments": {"url": "http://example.org/"}}]}, {"say": "So be it."}
                ),
                HOSTILE,
                scripted({"call": [{"name": "time", "arguments": {"timezone": HOSTILE}}]}, {"say": HOSTILE}),
            ):
                assert api.post(chat, json={"message": message}).status_code == 200
            assert api.post(chat, json={"message": scripted({"fail": "content_filter"})}).status_code >= 400
            assert api.post(chat, json={"message": "Remind me tomorrow at 8 to call Anna."}).status_code == 200
            assert api.post(chat, json={"message": "/new"}).status_code == 200
            known = {"content": "- Anna is his sister.\n- Takes tea without milk.", "version": 0}
            assert api.put("/agents/default/memory", json=known).status_code == 200
            note = {"message": "It has begun to rain.", "trigger": False}
            assert api.post(f"/conversations/{conversation}/messages", json=note).status_code < 300
        yield running
    finally:
        running.kill()


@pytest.fixture(scope="module")
def started():
    with browser() as program:
        yield program


@pytest.fixture(scope="module")
def boss(started, console):
    """The admin, signed in."""
    visitor = Visitor(started, console.address)
    visitor.sign_in("admin", PASSWORD)
    yield visitor
    visitor.context.close()


@pytest.fixture
def api(console):
    with console.client() as client:
        yield client


@pytest.fixture(autouse=True)
def _without_a_complaint(request):
    """Whatever a test does: no script fails, the policy refuses nothing, and nothing is asked of another host."""
    yield
    if "boss" in request.fixturenames:
        visitor = request.getfixturevalue("boss")
        complaints, strangers = visitor.complaints[:], visitor.strangers[:]
        visitor.complaints.clear()
        visitor.strangers.clear()
        assert (complaints, strangers) == ([], [])


@of_the_page
def test_signing_in_shows_the_overview(started, console):
    visitor = Visitor(started, console.address)
    visitor.sign_in("admin", "not this")
    expect(visitor.page.get_by_text("Please enter the correct")).to_be_visible()
    visitor.sign_in("admin", PASSWORD)
    expect(visitor.page.get_by_role("heading", name="Overview")).to_be_visible()
    visitor.context.close()


@of_the_page
def test_the_documentation_of_the_api_can_be_read_and_tried(boss):
    page = boss.page
    page.goto("/api/docs")
    page.locator("[data-path$='/tools']").click()
    page.get_by_role("button", name="Try it out").click()
    page.get_by_role("button", name="Execute").click()
    expect(page.locator(".responses-table.live-responses-table")).to_contain_text("not_authenticated")
    boss.complaints[:] = [each for each in boss.complaints if "401" not in each]  # what was tried without a key


@of_the_page
def test_what_is_not_there_is_told_on_a_page_that_everybody_can_read(boss, started, console):
    stranger = Visitor(started, console.address)
    signed_in = Visitor(started, console.address)
    signed_in.sign_in("admin", PASSWORD)
    for visitor in (stranger, signed_in):
        for width in WIDTHS:
            visitor.resize(width)
            visitor.page.goto("/nonsense/")
            expect(visitor.page.locator("#problem")).to_contain_text("The address is wrong")
            assert (visitor.faults(), visitor.is_too_wide(), visitor.strangers) == ([], False, [])
        visitor.page.get_by_role("link", name=re.compile("^To the")).click()
        expect(visitor.page.locator("#problem")).to_have_count(0)
        visitor.context.close()


@of_the_page
def test_a_schedule_is_made_by_its_form(boss, console):
    page = boss.page
    page.goto("/admin/scheduler/schedule/add/")
    for label in ("At", "Ends at"):
        field = page.get_by_label(label, exact=True)
        assert field.evaluate("field => getComputedStyle(field).borderTopWidth") != "0px"
    if PICTURES:
        boss.photograph(Path(PICTURES) / "schedule-form.png")
    page.get_by_label("Prompt").fill("Good morning!")
    page.get_by_label("Owner").select_option(label="admin")
    page.get_by_label("Agent").select_option(label="default")
    page.get_by_label("At", exact=True).fill("2126-05-04T09:00")
    page.get_by_label("Zone").select_option("Asia/Kolkata")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("was added successfully")).to_be_visible()
    (row,) = console.sql("SELECT at FROM scheduler_schedule WHERE prompt = 'Good morning!'")
    assert "2126-05-04 03:30:00" in str(row["at"])


@of_the_page
def test_a_key_is_made_and_opens_the_api(boss, console):
    page = boss.page
    page.goto("/admin/accounts/apikey/add/")
    page.get_by_label("Owner").select_option(label="admin")
    page.get_by_role("button", name="Save", exact=True).click()
    key = page.locator("#key").inner_text()
    assert (boss.faults(), boss.is_too_wide()) == ([], False)
    with console.client(key=key) as client:
        assert client.get("/conversations").status_code == 200


def test_a_webhook_is_made_and_tried(boss, console):
    page = boss.page
    page.goto("/admin/conversations/webhookendpoint/add/")
    page.get_by_label("Name").fill("the shop")
    page.get_by_label("Url").fill("http://127.0.0.1/hook")
    page.get_by_label("turn.failed", exact=False).check()
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator("#secret")).to_contain_text("whsec_")
    assert (boss.faults(), boss.is_too_wide()) == ([], False)
    page.get_by_role("link", name=re.compile("I have copied it")).click()
    page.get_by_label("Select record").check()
    page.get_by_label("Select action to run").select_option(label="Send a test event to the selected webhooks")
    page.get_by_role("button", name="Run").click()
    page.get_by_role("link", name="what has become of the test of the shop").click()
    wait_until(lambda: console.sql("SELECT id FROM conversations_delivery WHERE error LIKE ?", "http:%"))
    page.reload()
    expect(page.get_by_text("is not public", exact=False).first).to_be_visible()
    page.get_by_role("button", name="Send again").click()
    expect(page.get_by_text("1 of 1 are sent again")).to_be_visible()


def side(visitor):
    """Every page that a door at the side leads to; by name."""

    def links(where):
        return visitor.page.locator(where).evaluate_all("links => links.map(link => link.getAttribute('href'))")

    visitor.page.goto("/admin/")
    found = dict.fromkeys(links("#nav-sidebar a[href^='/admin/']"))
    for door in list(found):
        visitor.page.goto(door)
        found |= dict.fromkeys(links(".tabs a, .doors a"))
    return {address.removeprefix("/admin/").strip("/").replace("/", "-") or "overview": address for address in found}


# What is one click from a row, or asks before it acts.
MORE = {
    "agent-all-about-it": "/admin/agent/agent/1/whole/",
    "agent-files": "/admin/agent/agent/1/files/",
    "agent-files-of-an-owner": "/admin/agent/agent/1/files/1/",
    "simulator": "/admin/tools/toolsetting/simulate/",
    "queue-pause": "/admin/queue/intake/",
    "user-delete": "/admin/auth/user/1/delete/",
    "apikey-add": "/admin/accounts/apikey/add/",
    "webhook-add": "/admin/conversations/webhookendpoint/add/",
    "schedule-add": "/admin/scheduler/schedule/add/",
    "usage-by-day": "/admin/usage/?group_by=day&window=7+days",
    "budget-add": "/admin/agent/budget/add/",
    "legalhold-add": "/admin/accounts/legalhold/add/",
}


def of_the_talk(console):
    """The pages of the conversation that the host was made with, and of one of its turns."""
    (row,) = console.sql("SELECT id, conversation_id FROM conversations_turn WHERE number = 5 ORDER BY id LIMIT 1")
    conversation = f"/admin/conversations/conversation/{UUID(str(row['conversation_id']))}"
    return {
        "transcript": f"{conversation}/transcript/",
        "conversation-delete": f"{conversation}/delete/",
        "turn-sent": f"/admin/conversations/turn/{UUID(str(row['id']))}/sent/",
        "turn-time": f"/admin/conversations/turn/{UUID(str(row['id']))}/time/",
    }


@pytest.mark.timeout(1200)  # bounds a hang: dozens of pages, each several times
@pytest.mark.embedded(reason="its pages are those of the other shape")
def test_every_page_can_be_used_by_everybody_and_on_a_phone(boss, console):
    wrong = []
    there_are = list((side(boss) | MORE | of_the_talk(console)).items())
    assert len(there_are) > 30
    for name, address in there_are:
        boss.resize("desktop")
        boss.page.goto(address)
        first = boss.page.locator(f"#result_list a[href^='{address}']")
        if first.count():  # of each list, the first row's
            there_are.append((f"{name}-one", first.first.get_attribute("href")))
        for width in WIDTHS:
            boss.resize(width)
            # What axe looks at hardly differs by width.
            found = boss.faults() if width == "desktop" or PICTURES else []
            found += ["it is too wide"] if boss.is_too_wide() else []
            wrong += [f"{name} ({width}): {fault}" for fault in found]
            if PICTURES:
                boss.photograph(Path(PICTURES) / f"{name}.{width}.png")
    boss.resize("desktop")
    assert not wrong, "\n".join(wrong)


# Of a phone's screen, a row of a list takes half at most: the next one is seen, too.
MAX_OF_A_ROW = WIDTHS["phone"][1] // 2


@pytest.mark.timeout(1200)  # bounds a hang: dozens of pages, each several times
@of_the_page
def test_lists_on_a_phone_are_read_without_long_scrolling(boss, console):
    """A row takes no room for what is empty, and none takes more than half of the screen."""
    doors = side(boss)
    boss.resize("phone")
    looked_at, wrong = 0, []
    for name, address in doors.items():
        boss.page.goto(address)
        rows = boss.page.locator("#result_list .data-row, #result_list tbody tr")
        heights = rows.evaluate_all("rows => rows.map(row => row.getBoundingClientRect().height)")
        looked_at += len(heights)
        if heights and max(heights) > MAX_OF_A_ROW:
            wrong.append(f"{name}: a row of {max(heights):.0f} px")
        empty = boss.page.locator("#result_list td:visible").evaluate_all(
            "cells => cells.filter(cell => ['', '-', '–', '[]', '{}'].includes(cell.innerText.trim())"
            " && !cell.querySelector('input, img, svg, button')).length"
        )
        wrong += [f"{name}: {empty} fields that are empty"] if empty else []
    boss.resize("desktop")
    assert looked_at > 20
    assert not wrong, "\n".join(wrong)


def test_a_tool_that_is_switched_off_does_not_run_in_the_next_chat(boss, api):
    conversation = start(api)
    page = boss.page

    def ask():
        answer = api.post(f"/conversations/{conversation}/chat", json={"message": "What time is it?"}).json()
        return [call["status"] for call in answer["toolCalls"]]

    def act(action):
        page.goto("/admin/tools/toolsetting/")
        page.locator("#result_list tr", has=page.get_by_role("link", name="time", exact=True)).get_by_role(
            "checkbox"
        ).check()
        page.get_by_label("Select action to run").select_option(label=f"{action} the selected tools")
        page.get_by_role("button", name="Run").click()
        expect(page.get_by_text(f"1 tools are {action.lower()}d.")).to_be_visible()

    assert ask() == ["SUCCESS"]
    act("Disable")
    assert ask() == []  # it is not even offered
    act("Enable")
    assert ask() == ["SUCCESS"]


def test_the_daily_summary_is_switched_on_and_off(boss, console):
    page = boss.page

    def switch(action):
        page.goto("/admin/django_celery_beat/periodictask/")
        job = page.locator("#result_list tr", has=page.get_by_role("link", name="daily_summary", exact=True))
        job.get_by_role("checkbox").check()
        page.get_by_label("Select action to run").select_option(label=f"{action} the selected jobs")
        page.get_by_role("button", name="Run").click()
        expect(page.get_by_text(f"1 job is {action.lower()}d.")).to_be_visible()
        (row,) = console.sql("SELECT enabled FROM django_celery_beat_periodictask WHERE name = 'daily_summary'")
        return bool(row["enabled"])

    assert switch("Enable")
    assert not switch("Disable")


def test_a_changed_document_is_a_version_that_the_next_turn_ran_with(boss, api):
    page = boss.page
    page.goto("/admin/agent/agent/")
    page.locator("#result_list").get_by_role("link", name="default").click()
    page.get_by_role("textbox", name="SOUL").fill("Speak like a pirate.")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("was changed successfully")).to_be_visible()
    page.goto("/admin/agent/agentversion/")
    page.locator("#result_list tbody tr").first.get_by_role("link").first.click()
    expect(page.locator("ins", has_text="Speak like a pirate.").first).to_be_visible()
    turn = api.post(f"/conversations/{start(api)}/chat", json={"message": "Ahoy?"}).json()["turnId"]
    page.goto(f"/admin/conversations/turn/{turn}/change/")
    page.get_by_role("link", name=re.compile(r"version \d+")).click()
    expect(page.locator("ins", has_text="Speak like a pirate.").first).to_be_visible()


@of_the_page
def test_a_transcript_is_read_and_what_means_ill_in_it_does_nothing(boss, console):
    page = boss.page
    page.goto(of_the_talk(console)["transcript"])
    expect(page.locator("#turn-1")).to_contain_text("Good morning! What can you do?")
    call = page.locator("#turn-2 details")
    expect(call.get_by_text("Arguments")).to_be_hidden()
    call.locator("summary").click()
    expect(call.get_by_text("Arguments")).to_be_visible()
    refused = page.locator("#turn-3 details")
    expect(refused.locator("summary")).to_contain_text("REJECTED by the rule not_enabled")
    expect(page.locator("#turn-4")).to_contain_text("<script>document.title = 'taken'</script>")
    expect(page.locator("#turn-4")).to_contain_text("U+202E")
    expect(page.locator("#turn-6 .problem")).to_contain_text("Failed:")
    refused.locator("summary").click()
    refused.get_by_role("link", name="why?").click()
    expect(page.get_by_role("heading", name="No: the rule not_enabled refuses it")).to_be_visible()
    assert "taken" not in page.title()


@of_the_page
def test_what_a_model_was_sent_is_shown_byte_by_byte(boss, console):
    page = boss.page
    page.goto(of_the_talk(console)["turn-sent"])
    expect(page.locator("#verdict")).to_contain_text("This is what was sent, byte by byte.")
    expect(page.get_by_role("heading", name="Model call 2 of 2")).to_be_visible()
    expect(page.locator("#sent details").last).to_contain_text("<untrusted>")
    page.get_by_role("link", name="Call 1").click()
    expect(page.get_by_role("heading", name="Model call 1 of 2")).to_be_visible()


def test_files_are_put_taken_removed_and_undone_where_they_are_seen(boss, tmp_path):
    page, content = boss.page, b"<script>document.title = 'taken'</script>" + bytes(3_000_000)
    (tmp_path / "plan.html").write_bytes(content)
    page.goto("/admin/agent/agent/1/files/1/")
    page.get_by_label("File", exact=True).set_input_files(tmp_path / "plan.html")
    page.get_by_role("button", name="Put it there").click()
    expect(page.get_by_text("plan.html was put there.")).to_be_visible()
    with page.expect_download() as waiting:
        page.get_by_role("link", name="plan.html").click()
    assert Path(waiting.value.path()).read_bytes() == content
    page.get_by_role("button", name="Remove plan.html").click()
    expect(page.get_by_text("plan.html was removed.")).to_be_visible()
    expect(page.get_by_role("link", name="plan.html")).to_have_count(0)
    page.get_by_label("A file that was removed or changed within the last day").fill("plan.html")
    page.get_by_role("button", name="Undo its last change").click()
    expect(page.get_by_role("link", name="plan.html")).to_be_visible()


@of_the_page
def test_the_simulator_says_which_rule_decides(boss):
    page = boss.page
    page.goto("/admin/tools/toolsetting/simulate/")

    def ask(tool, arguments):
        page.get_by_label("Tool").fill(tool)
        page.locator("#id_arguments").fill(arguments)
        page.get_by_role("button", name="Ask the gate").click()
        return page.locator("#verdict-title")

    expect(ask("time", '{"timezone": "Europe/Berlin"}')).to_have_text("Yes: it would run")
    expect(ask("time", '{"timezone": 7}')).to_have_text("No: the rule arguments refuses it")
    expect(ask("http_get", "{}")).to_have_text("No: the rule not_enabled refuses it")


def test_a_turn_that_is_stuck_is_requeued_and_answered(boss, api):
    page = boss.page
    script = scripted({"fail": "rate_limited", "times": 1, "retryAfter": 60, "say": "At last."})
    page.goto("/admin/queue/")
    sent = api.post(f"/conversations/{start(api)}/turns", json={"message": script})
    turn = sent.json()["turnId"]
    row = page.locator(f"#turn-{turn}")
    expect(row).to_contain_text("It failed once (llm_rate_limited", timeout=30_000)  # the page reads itself again
    row.get_by_role("checkbox").check()
    page.get_by_role("button", name="Requeue…").click()
    expect(page.get_by_text("is never run twice")).to_be_visible()
    page.get_by_label("Why").fill("The provider is back.")
    page.get_by_role("button", name="Yes, requeue").click()
    expect(page.get_by_text("Requeued: 1 turn.")).to_be_visible()
    wait_until(lambda: api.get(f"/turns/{turn}").json()["status"] == "succeeded")
    page.goto("/admin/queue/")
    expect(page.locator("#log")).to_contain_text("Requeued: The provider is back.")


def test_the_intake_is_paused_for_a_deploy_and_resumed(boss, api):
    page, conversation = boss.page, start(api)

    def say():
        return api.post(f"/conversations/{conversation}/chat", json={"message": "Anybody there?"})

    page.goto("/admin/queue/")
    page.get_by_role("link", name="Pause intake").click()
    page.get_by_label("Why").fill("Version 2 comes.")
    page.get_by_role("button", name="Yes, pause").click()
    expect(page.locator("#intake-state")).to_have_text("Drained")
    page.goto("/admin/agent/agent/")
    expect(page.get_by_text("Version 2 comes.")).to_be_visible()
    wait_until(lambda: say().status_code == 503)
    assert int(say().headers["Retry-After"]) > 0
    page.goto("/admin/queue/")
    page.get_by_role("button", name="Resume intake").click()
    expect(page.locator("#intake-state")).to_have_text("Open")
    wait_until(lambda: say().status_code == 200)


class Goal:
    """Somebody on the way to something, with their clicks counted; from the overview, where everybody begins."""

    def __init__(self, visitor):
        self.page, self.clicks = visitor.page, 0
        self.page.goto("/admin/")

    def click(self, locator):
        locator.first.click()
        self.page.wait_for_load_state()
        self.clicks += 1

    def door(self, name):
        self.click(self.page.locator("#nav-sidebar").get_by_role("link", name=name))

    def link(self, name):
        self.click(self.page.get_by_role("link", name=name, exact=True))

    def button(self, name):
        self.click(self.page.get_by_role("button", name=name, exact=True))


@of_the_page
def test_goals_of_a_product_owner_of_operations_and_of_an_auditor_take_few_clicks(boss, console, started):
    page = boss.page
    page.goto("/admin/tools/toolsetting/")
    page.locator("#result_list tr", has=page.get_by_role("link", name="remember", exact=True)).get_by_role(
        "checkbox"
    ).check()
    page.get_by_label("Select action to run").select_option(label="Enable the selected tools")
    page.get_by_role("button", name="Run").click()

    owner = Goal(boss)
    owner.door("Agents")
    owner.click(owner.page.locator("a[href$='/agent/agent/add/']"))
    owner.page.locator("#id_name").fill("clerk")
    owner.page.locator("#id_display_name").fill("Ms. Clerk")
    owner.click(owner.page.get_by_label("time", exact=True))
    owner.button("Save")
    owner.door("Settings")
    owner.link("Add a colleague")
    owner.page.get_by_label("User name").fill("auditor")
    owner.page.get_by_label("Role").select_option("viewer")
    owner.clicks += 1
    owner.click(owner.page.get_by_label("An API key as well"))
    owner.click(owner.page.get_by_label("clerk", exact=True))
    owner.button("Add")
    key, link = (owner.page.locator(f"#{name}").inner_text() for name in ("key", "link"))
    assert owner.clicks <= 12
    with console.client(key=key) as client:
        assert client.get(f"{console.address}/v1/models").json()["data"][0]["id"] == "clerk"

    since = "2026-11-24 10:00:00"
    console.sql(
        "INSERT INTO agent_provideroutage (provider, since, until, code, times) VALUES (?, ?, ?, ?, 1)",
        *("openai", since, "2126-01-01 00:00:00", "llm_unavailable"),
    )
    operations = Goal(boss)
    expect(operations.page.locator("#attention")).to_contain_text("openai")
    operations.click(operations.page.locator("#attention .need", has_text="openai").get_by_role("link"))
    expect(operations.page.locator("#result_list")).to_contain_text("llm_unavailable")
    assert operations.clicks <= 1
    console.sql("DELETE FROM agent_provideroutage")

    visitor = Visitor(started, console.address)
    visitor.page.goto(link)
    for box in visitor.page.locator("input[type=password]").all():
        box.fill("correct horse battery")
    visitor.page.get_by_role("button", name="Set the password").click()
    expect(visitor.page.get_by_role("heading", name="Overview")).to_be_visible()
    auditor = Goal(visitor)
    auditor.door("Tools")
    auditor.link("remember")
    change = auditor.page.locator("tr", has_text="enabled: false → true")
    expect(change).to_contain_text("admin")
    assert auditor.clicks <= 3
    assert (visitor.complaints, visitor.strangers, visitor.faults()) == ([], [], [])
    visitor.context.close()
