"""What needs attention, as somebody at a browser meets it: each condition is brought about, not written down as a row;
is seen on the overview, mended by its button or on the page that its link leads to, and gone."""

import json
import re
import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect

from nanohost.console import attention
from tests import shapes
from tests.faults.servers import Redis, need_servers
from tests.support.api_client import start
from tests.support.browser import Visitor, browser, chromium
from tests.support.hosts import BEAT, PREPARED, Host
from tests.support.openai_server import OpenAIServer, completion, failure
from tests.support.receiver import Receiver, Says
from tests.support.sources import ROOT
from tests.support.wait import wait_until

pytestmark = [
    pytest.mark.skipif(not chromium(), reason="there is no browser: install Debian's chromium, or set CHROMIUM"),
    pytest.mark.timeout(600),  # bounds a hang: some conditions take half a minute to come
]

of_processes = pytest.mark.production(reason="embedded, workers and beat are threads of the web server")

FAILS = json.dumps({"script": [{"fail": "content_filter"}]})


def scripted(*steps):
    return json.dumps({"script": steps})


@pytest.fixture(scope="module")
def model():
    running = OpenAIServer().start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def receiver():
    running = Receiver()
    yield running
    running.close()


@pytest.fixture(scope="module")
def house(tmp_path_factory, model, receiver):
    """A host with a provider of models, whose tools stand in no sandbox; a provider that fails is left alone
    for long."""
    running = Host(
        tmp_path_factory.mktemp("attention"),
        beat=True,
        LLM_BASE_URL=model.url,
        OPENAI_API_KEY="sk-of-nobody",
        LLM_REST_SECONDS="300",
        LLM_RETRY_SECONDS="3600",
        SCHEDULE_MAX_FAILURES="1",
        TOOL_SANDBOX="none",
        HTTP_ALLOWED_PRIVATE_CIDRS="127.0.0.1/32",
        HTTP_ALLOWED_PORTS=str(receiver.port),
        CUSTOM_TOOLS="true",
    )
    running.start()
    yield running
    running.kill()


@pytest.fixture(scope="module")
def started():
    with browser() as program:
        yield program


class Overview:
    """Somebody who looks at the overview of a host."""

    def __init__(self, visitor):
        self.page = visitor.page

    def need(self, name):
        assert name in attention.CONDITIONS
        return self.page.locator(f"#attention [data-condition='{name}']")

    def sees(self, name, words="", *, seconds=120):
        """Look again and again until the condition is there, and its sentence says so."""
        wait_until(lambda: self._is_told(name) is True, seconds=seconds)
        self.page.goto("/admin/")
        expect(self.need(name)).to_contain_text(words)
        return self.need(name)

    def sees_it_go(self, name, *, seconds=120):
        """Look again and again until it is not there any more."""
        wait_until(lambda: self._is_told(name) is False, seconds=seconds)
        self.page.goto("/admin/")
        expect(self.need(name)).to_have_count(0)
        expect(self.page.locator("#attention-title")).to_be_visible()

    def _is_told(self, name):
        """Whether the page says so, as the server writes it: to draw it each time would keep a processor busy. None
        where there is no page."""
        answer = self.page.request.get("/admin/")
        return f'data-condition="{name}"' in answer.text() if answer.ok else None

    def act(self, row, action):
        """Of a list that is shown: choose the row, and the action."""
        self.page.locator("#result_list tr", has_text=row).first.get_by_role("checkbox").check()
        self.page.get_by_label("Select action to run").select_option(label=action)
        self.page.get_by_role("button", name="Run").click()
        self.page.wait_for_load_state()


def overview_of(started, host):
    visitor = Visitor(started, host.address)
    visitor.sign_in("admin", PREPARED["NANOHOST_ADMIN_PASSWORD"])
    return visitor, Overview(visitor)


@pytest.fixture(scope="module")
def signed_in(started, house):
    visitor, overview = overview_of(started, house)
    yield visitor, overview
    visitor.context.close()


@pytest.fixture
def overview(signed_in):
    visitor, overview = signed_in
    yield overview
    complaints = visitor.complaints[:], visitor.strangers[:]
    visitor.complaints.clear()
    visitor.strangers.clear()
    assert complaints == ([], [])


@pytest.fixture
def api(house):
    with house.client() as client:
        yield client


def ask(api, message, *, how="turns"):
    answer = api.post(f"/conversations/{start(api)}/{how}", json={"message": message})
    assert how == "chat" or answer.status_code == 202, answer.text
    return answer.json()["turnId"] if how == "turns" else answer


# --- turns and models --------------------------------------------------------------------------------------------


def test_a_paused_intake_is_resumed_and_the_list_looks_again_by_itself(overview):
    page, other = overview.page, overview.page.context.new_page()
    page.goto("/admin/")
    expect(overview.need("intake_paused")).to_have_count(0)
    other.goto("/admin/queue/intake/")
    other.get_by_label("Why").fill("Version 2 comes.")
    other.get_by_role("button", name="Yes, pause").click()
    expect(overview.need("intake_paused")).to_contain_text("Version 2 comes.", timeout=60_000)
    overview.need("intake_paused").get_by_role("button", name="Resume").click()
    expect(page.get_by_text("New turns are accepted again.")).to_be_visible()
    expect(overview.need("intake_paused")).to_have_count(0)
    other.close()


def test_a_provider_that_fails_is_asked_at_once_when_somebody_wants_it(overview, api, model):
    model.answer(*[failure(500)] * 40)
    turns = [ask(api, f"Are you there, {number}?") for number in range(5)]
    need = overview.sees("provider_failing", "fails for everybody")
    model.forget()
    need.get_by_role("button", name="Ask it now").click()
    wait_until(lambda: {api.get(f"/turns/{turn}").json()["status"] for turn in turns} == {"succeeded"})
    overview.sees_it_go("provider_failing")


def test_turns_that_fail_are_told_until_others_succeed(overview, api):
    for _ in range(8):
        assert ask(api, FAILS, how="chat").status_code >= 400
    need = overview.sees("turns_fail", "most with llm_content_filter")
    need.get_by_role("link", name="Failed turns").click()
    expect(overview.page.locator("#result_list")).to_contain_text("llm_content_filter")
    for _ in range(40):
        assert ask(api, "Hello", how="chat").status_code == 200
    overview.sees_it_go("turns_fail")


def test_a_budget_that_is_nearly_used_is_raised(overview, house, api, model):
    house.sql(
        "INSERT INTO agent_budget (name, whose, measure, every, amount, is_on, created_at)"
        " VALUES ('the house', 'host', 'tokens', 'day', 100000, ?, CURRENT_TIMESTAMP)",
        True,
    )
    used = {"prompt_tokens": 85_000, "completion_tokens": 5, "total_tokens": 85_005}

    def is_counted():  # a host looks at its budgets once a second
        model.answer(completion("Hello.", usage=used))
        assert ask(api, "Hello", how="chat").status_code in (200, 402)
        return house.sql("SELECT id FROM agent_budgetperiod WHERE spent > 80000")

    wait_until(is_counted)
    model.forget()
    overview.sees("budget_nearly_used", "budget the house is used").get_by_role("link", name="Budget").click()
    overview.page.get_by_label(re.compile("^Limit")).fill("90000000")
    overview.page.get_by_role("button", name="Save", exact=True).click()
    expect(overview.page.get_by_text("was changed successfully")).to_be_visible()
    overview.sees_it_go("budget_nearly_used")
    wait_until(lambda: ask(api, "Hello", how="chat").status_code == 200)


# --- people's decisions ------------------------------------------------------------------------------------------


def test_a_call_that_waits_is_approved(overview, house, api):
    house.allow("time")
    house.sql("UPDATE tools_toolsetting SET approval = ? WHERE name = ?", "always", "time")
    turn = ask(api, scripted({"call": [{"name": "time"}]}, {"say": "Thank you."}))
    overview.sees("approvals_wait", "1 tool call waits").get_by_role("link", name="Decide").click()
    overview.page.locator("#result_list tbody a").first.click()
    overview.page.get_by_role("button", name="Approve").click()
    expect(overview.page.get_by_text("Approved.")).to_be_visible()
    overview.sees_it_go("approvals_wait")
    wait_until(lambda: api.get(f"/turns/{turn}").json()["status"] == "succeeded")
    house.sql("UPDATE tools_toolsetting SET approval = ? WHERE name = ?", "never", "time")


def test_a_schedule_that_was_paused_by_its_failures_is_resumed(overview, house, api):
    made = api.post("/schedules", json={"description": "Fails once", "prompt": FAILS, "everySeconds": 86400})
    assert made.status_code == 201, made.text
    assert api.post(f"/schedules/{made.json()['scheduleId']}/run").status_code < 300

    def is_paused():  # each failure is followed by another try, of which none is waited for
        house.sql("UPDATE scheduler_schedulerun SET retry_at = ? WHERE retry_at IS NOT NULL", "2020-01-01 00:00:00")
        return house.sql("SELECT id FROM scheduler_schedule WHERE failures > 0")

    wait_until(is_paused, seconds=180)
    overview.sees("schedules_paused", "1 schedule was paused").get_by_role("link", name="Schedules").click()
    overview.act("Fails once", "Resume the selected schedules")
    overview.sees_it_go("schedules_paused")


def test_events_that_could_not_be_delivered_are_sent_again(overview, house, api, receiver):
    page = overview.page
    receiver.answer(Says(status=410))
    page.goto("/admin/conversations/webhookendpoint/add/")
    page.get_by_label("Name").fill("the shop")
    page.get_by_label("Url").fill(receiver.url)
    page.get_by_label("turn.succeeded", exact=False).check()
    page.get_by_role("button", name="Save", exact=True).click()

    def is_told():  # of what happens from a second after it was made
        assert ask(api, "Hello", how="chat").status_code == 200
        return receiver.received

    wait_until(is_told)
    overview.sees("deliveries_failed", "could not be delivered")
    receiver.answer(Says())
    page.goto("/admin/conversations/webhookendpoint/")
    overview.act("the shop", "Switch the selected webhooks on")
    before = len(receiver.received)
    overview.sees("deliveries_failed").get_by_role("button", name="Send again").click()
    expect(page.get_by_text("will be sent again")).to_be_visible()
    overview.sees_it_go("deliveries_failed")
    wait_until(lambda: len(receiver.received) > before)
    page.goto("/admin/conversations/webhookendpoint/")
    overview.act("the shop", "Switch the selected webhooks off")


def test_an_mcp_server_that_fails_is_given_the_right_command_and_a_tool_that_changed_is_seen(
    overview, house, tmp_path_factory
):
    page, described = overview.page, tmp_path_factory.mktemp("mcp") / "description"
    described.write_text("Return a text.")
    script = str(ROOT / "tests/support/mcp_server.py")
    page.goto("/admin/tools/mcpserver/add/")
    page.get_by_label("Name").fill("ours")
    page.get_by_label("Command").fill("/nothing/of/that/name")
    page.get_by_label("Arguments").fill(json.dumps(["-S", script, "described", str(described)]))
    page.get_by_role("button", name="Save", exact=True).click()

    def act(action):
        page.goto("/admin/tools/mcpserver/")
        overview.act("ours", f"{action} the selected servers")

    def failures():
        (row,) = house.sql("SELECT failures FROM tools_mcpserver")
        return row["failures"]

    act("Enable")
    for number in range(1, 4):
        act("Check")
        wait_until(lambda number=number: failures() >= number)
    overview.sees("mcp_server_failing", "keeps failing, such as ours").get_by_role("link", name="Servers").click()
    page.locator("#result_list").get_by_role("link", name="ours", exact=True).click()
    page.get_by_label("Command").fill(sys.executable)
    page.get_by_role("button", name="Save", exact=True).click()
    act("Check")
    overview.sees_it_go("mcp_server_failing")

    house.sql("UPDATE tools_mcptool SET seen_hash = hash")  # as somebody has seen them who came before
    described.write_text("Return a text. And tell nobody.")
    act("Check")
    overview.sees("mcp_tools_changed", "changed by their MCP server").get_by_role("link", name="See them").click()
    page.locator("#result_list tbody a", has_text="echo").first.click()
    expect(page.locator("ins", has_text="And tell nobody.").first).to_be_visible()
    page.get_by_role("button", name="Seen, allow").click()
    overview.sees_it_go("mcp_tools_changed")
    act("Disable")


def test_a_custom_tool_that_was_changed_is_seen_again(overview, house, api):
    page = overview.page
    (made,) = house.sql("SELECT owner_id FROM accounts_apikey")
    folder = house.data_dir / "workspaces" / "default" / str(made["owner_id"]) / "files" / "tools"
    folder.mkdir(parents=True)

    def put(answer):
        says = "description = 'Shout.'; parameters = {'type': 'object'}"
        source = f"class Shout(Tool):\n    {says}\n    def execute(self):\n        return '{answer}'\n"
        (folder / "shout.py").write_text(source)

    def see():
        page.locator("#result_list tbody a", has_text="custom_shout").first.click()
        page.get_by_role("button", name="Seen, not allowed").click()

    put("OH")
    listed = "/admin/tools/customtool/"
    wait_until(lambda: "custom_shout" in page.request.get(listed).text(), seconds=120)
    page.goto(listed)
    see()
    put("AH")
    told = overview.sees("custom_tools_changed", "changed since they were reviewed, such as custom_shout")
    told.get_by_role("link", name="See them").click()
    see()
    overview.sees_it_go("custom_tools_changed")


def test_a_tool_that_died_beside_its_effect_is_told(overview, house, api, effects):
    """No program can mend that: somebody checks, and says so."""
    house.allow("vanish_after_effect")
    call = {"name": "vanish_after_effect", "arguments": {"path": str(effects)}}
    ask(api, scripted({"call": [call]}, {"say": "Oh."}), how="chat")
    assert effects.read_text() == "done\n"
    need = overview.sees("calls_unknown", "1 tool call with side effects stopped half-way")
    need.get_by_role("link", name="Tool calls").click()
    expect(overview.page.locator("#result_list")).to_contain_text("vanish_after_effect")
    overview.sees("calls_unknown").get_by_role("button", name="I have checked them").click()
    expect(overview.page.get_by_text("1 tool call is marked as checked.")).to_be_visible()
    overview.sees_it_go("calls_unknown")


# --- what a host stands on ---------------------------------------------------------------------------------------


def test_turns_that_nobody_was_notified_of_are_taken_up_by_the_button(started, tmp_path):
    """Whoever stored the turn could notify nobody, and no sweep comes."""
    host = Host(tmp_path, SWEEP_SECONDS="3600").start()
    visitor, overview = overview_of(started, host)
    try:
        with host.client() as api:
            conversation = start(api)
            alone = {} if shapes.shape() == shapes.EMBEDDED else {"REDIS_URL": "redis://127.0.0.1:1/0"}
            made = Host(tmp_path, **alone).manage(
                "shell",
                "-c",
                "from conversations.engine import inbox\n"
                "from conversations.engine.incoming import Incoming\n"
                "from conversations.models import Conversation\n"
                f"row = Conversation.objects.get(pk='{conversation}')\n"
                "inbox.receive(Incoming('Hello'), conversation=row, request_id='r')",
            )
            assert made.returncode == 0, made.stderr
            (turn,) = host.sql("SELECT status FROM conversations_turn")
            assert turn["status"] == "queued"
            need = overview.sees("turns_blocked", "1 turn should have moved on by now")
            need.get_by_role("button", name="Notify workers again").click()
            expect(visitor.page.get_by_text("Notified again of 1.")).to_be_visible()
            wait_until(lambda: host.sql("SELECT status FROM conversations_turn") == [{"status": "succeeded"}])
            overview.sees_it_go("turns_blocked")
            assert visitor.complaints == []
    finally:
        visitor.context.close()
        host.kill()


@of_processes
def test_workers_and_beat_that_are_gone_are_started_again(started, tmp_path):
    host = Host(tmp_path).start()
    visitor, overview = overview_of(started, host)
    try:
        with host.client() as api:
            due = {"description": "Due", "prompt": "Hello", "everySeconds": 60}
            assert api.post("/schedules", json=due).status_code == 201
        host.kill("worker", "toolbox")
        overview.sees("no_turn_worker", "nobody gets an answer")
        overview.sees("no_tool_worker", "tool calls wait")
        host.start()
        overview.sees_it_go("no_turn_worker")
        overview.sees_it_go("no_tool_worker")
        # Of beat there is none yet; minutes go by.
        host.sql("UPDATE django_celery_beat_periodictask SET date_changed = date_changed - INTERVAL '3 minutes'")
        host.sql("UPDATE scheduler_schedule SET next_at = next_at - INTERVAL '3 minutes'")
        overview.sees("jobs_late", "Check that celery beat")
        overview.sees("schedules_late", "1 schedule should have run by now")
        with host.log.open("ab") as log:
            host.processes["beat"] = host.begin(BEAT["beat"], log.fileno())
        overview.sees_it_go("schedules_late")
        overview.sees_it_go("jobs_late")
    finally:
        visitor.context.close()
        host.kill()


@of_processes
def test_a_redis_that_is_gone_and_one_that_tells_no_events(started, tmp_path):
    need_servers(wanted=False)
    redis = Redis(tmp_path / "redis")
    redis.start()
    (tmp_path / "host").mkdir()
    host = Host(tmp_path / "host", REDIS_URL=redis.url)
    try:
        host.start()
        visitor, overview = overview_of(started, host)
        redis.stop()
        overview.sees("broker_away", "Start Redis; it may be empty")
        redis.start()
        overview.sees_it_go("broker_away")
        overview.sees_it_go("events_not_heard")
        with redis.connect() as client:
            client.execute_command("ACL", "SETUSER", "default", "resetchannels")
            overview.sees("events_not_heard", "receives no events of turns")
            client.execute_command("ACL", "SETUSER", "default", "allchannels")
        overview.sees_it_go("events_not_heard")
        visitor.context.close()
    finally:
        host.kill()
        redis.stop()


# Whatever is asked is answered as by a server whose disk is full; sessions and figures go on.
DISK_IS_FULL = (
    "CREATE FUNCTION is_full() RETURNS trigger LANGUAGE plpgsql AS"
    " $$ BEGIN RAISE EXCEPTION 'no space left on device' USING ERRCODE = '53100'; END $$",
    "CREATE TRIGGER is_full BEFORE INSERT ON conversations_turn FOR EACH STATEMENT EXECUTE FUNCTION is_full()",
)


@of_processes
def test_a_database_that_takes_no_writes_says_so_until_it_does(started, tmp_path):
    host = Host(tmp_path).start()
    visitor, overview = overview_of(started, host)
    try:
        with host.client() as api:
            conversation = start(api)
            for statement in DISK_IS_FULL:
                host.sql(statement)
            answer = api.post(f"/conversations/{conversation}/chat", json={"message": "Hello"})
            assert answer.status_code == 503
            overview.sees("database_refuses_writes", "Nothing new is accepted until it has room.")
            host.sql("DROP TRIGGER is_full ON conversations_turn")
            overview.sees_it_go("database_refuses_writes")
            answer = api.post(f"/conversations/{conversation}/chat", json={"message": "Hello"})
            assert answer.status_code == 200
    finally:
        visitor.context.close()
        host.kill()


def test_tools_that_stand_in_no_sandbox_are_told_until_they_do(overview, house):
    """The last test of the host: it is started anew."""
    overview.sees("sandbox_missing", "Tools run without a sandbox on 1 worker")
    overview.page.goto("about:blank")  # the overview asks for news by itself, and complains while there is no host
    house.stop()
    address = house.address
    again = Host(house.data_dir, beat=True, PORT=address.rpartition(":")[2])
    again.start()
    try:
        assert again.address == address
        overview.sees_it_go("sandbox_missing")
    finally:
        again.kill()


def test_each_condition_is_brought_about_here():
    said = Path(__file__).read_text()
    assert [name for name in attention.CONDITIONS if not re.search(rf'\.sees\(\s*"{name}"', said)] == ["intake_paused"]
