"""The console's page *Queue*: what it says, what it does, and who may do it."""

import html
import re
import time
from datetime import timedelta

import pytest
import redis
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, Permission
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from conversations.engine import inbox, intake, lease
from conversations.engine.incoming import Incoming
from conversations.models import MAX_REASON, IntakePause, Turn, Worker
from conversations.statuses import TurnStatus, WaitingFor
from nanohost.console import broker
from nanohost.console.roles import OPERATOR, VIEWER, sync_roles
from nanohost.lib.clock import from_now
from tests import shapes
from tests.faults import doorbell
from tests.faults.servers import free_port
from tests.support.brokers import SilentBroker
from tests.support.console_client import HOSTILE
from tests.support.factories import OwnerFactory
from tests.support.scripts import script
from tests.support.working import advance, run_call
from tools.models import CallStatus, ToolCall

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = "/admin/queue/"


@pytest.fixture
def client_of(db):
    sync_roles()

    def sign_in(role):
        user = OwnerFactory(username=f"of {role}", is_staff=True)
        user.groups.add(Group.objects.get(name=role))
        client = Client()
        client.force_login(user)
        return client

    return sign_in


@pytest.fixture
def operator(client_of):
    return client_of(OPERATOR)


@pytest.fixture
def worker(db):
    """A live one: ``worker(queues="tools")``."""

    def start(name="worker-1", queues="turns,compaction", silent=0, **fields):
        fields = {"version": "0.1.0", "turns_most": 200} | fields
        row = Worker.objects.create(name=name, queues=queues, heartbeat_at=timezone.now(), **fields)
        Worker.objects.filter(pk=row.pk).update(heartbeat_at=from_now(-silent))
        return row

    return start


def look(client, **query):
    answer = client.get(PAGE, query)
    assert answer.status_code == 200
    return answer


def words_of(client, turn):
    """What the page says of a turn, and how urgent it takes it for."""
    shown = look(client)
    (found,) = [each for each in shown.context["found"] if each.turn.pk == turn.pk]
    assert found.words in html.unescape(shown.content.decode())
    return found.urgency, found.words


# --- what it says of turns --------------------------------------------------------------------------------------------


def test_an_empty_queue_says_so(operator):
    doorbell.purge()
    shown = look(operator).content.decode()
    for words in ("No open turns", "No workers yet.", "No backlog.", "0 running, 0 waiting, 0 queued"):
        assert words in shown


def test_the_sandbox_is_told_of_each_toolbox_and_of_all(operator, worker):
    worker(name="box-1", queues="tools", sandbox="bubblewrap")
    worker(name="box-2", queues="turns,tools", sandbox="landlock, signals get out")
    worker(name="gone", queues="tools", sandbox="none", ended_at=timezone.now())
    assert "<td>landlock, signals get out</td>" in operator.get(reverse("queue")).content.decode()
    overview = operator.get(reverse("admin:index")).content.decode()
    assert "tool sandbox: bubblewrap; landlock, signals get out" in overview
    assert Client().get("/health/ready").json()["sandbox"] == ["bubblewrap", "landlock, signals get out"]


def test_a_running_turn_whose_worker_is_gone_is_stuck(operator, say, worker):
    worker(name="other")
    turn = say("Hello")
    lease.claim(turn.pk, worker="worker-1")
    assert words_of(operator, turn) == (
        "late",
        "Its worker is offline. When its lease has expired, another takes over.",
    )
    Turn.objects.update(lease_until=from_now(-20))
    urgency, words = words_of(operator, turn)
    assert urgency == "stuck"
    assert re.fullmatch(
        r"Its worker stopped answering: its lease ran out 2\d s ago\. The sweep takes it up within 5 s\.", words
    )
    Turn.objects.update(lease_until=from_now(-60))
    assert "requeue it" in words_of(operator, turn)[1]
    Worker.objects.all().delete()
    assert words_of(operator, turn)[1].endswith("No worker for turns is online: start one.")


def test_a_turn_that_somebody_works_on_is_fine(operator, say, worker):
    worker()
    turn = say("Hello")
    lease.claim(turn.pk, worker="worker-1")
    assert re.fullmatch(r"Waiting for model gpt-4.1-mini for 0\.\d s\.", words_of(operator, turn)[1])
    Turn.objects.update(cancel_requested=True)
    assert "being cancelled" in words_of(operator, turn)[1]
    Turn.objects.update(deadline=from_now(-10))
    assert words_of(operator, turn)[0] == "stuck"


def test_a_queued_turn_is_late_when_nobody_has_come(operator, say, worker, owner):
    worker(turns_most=1)
    lease.claim(say("x", conversation=another(owner)).pk, worker="worker-1")
    turn, behind = say("one"), say("two")
    assert words_of(operator, turn) == (
        "",
        "It waits for a worker. All workers are full (1 of 1 turns): start another.",
    )
    assert words_of(operator, behind) == ("", "It waits behind turn 1 of its conversation.")
    Turn.objects.update(notified_at=from_now(-40))
    Worker.objects.update(turns_most=3)
    urgency, words = words_of(operator, turn)
    assert urgency == "late"
    assert re.fullmatch(r"Workers were notified 4\d s ago, and none has come\.", words)
    assert words_of(operator, behind)[0] == ""
    Turn.objects.update(notified_at=None)
    assert words_of(operator, turn) == ("", "No worker could be notified of it; the sweep finds it within 5 s.")


def test_a_waiting_turn_names_its_calls(operator, say, tool_settings, worker):
    worker()
    tool_settings("time")
    turn = advance(say("What time is it?"))
    urgency, words = words_of(operator, turn)
    assert urgency == ""
    assert re.fullmatch(
        r"It waits for 1 tool call: time \(queued for .*\)\. No worker for tools is online: start one\.", words
    )
    worker(name="toolbox-1", queues="tools", turns_most=0)
    ToolCall.objects.update(created_at=from_now(-60))
    urgency, words = words_of(operator, turn)
    assert urgency == "late"
    assert "start one" not in words
    ToolCall.objects.update(status=CallStatus.RUNNING, lease_until=from_now(-9))
    urgency, words = words_of(operator, turn)
    assert urgency == "stuck"
    assert "its worker stopped answering 9" in words
    ToolCall.objects.update(status=CallStatus.SUCCESS)
    assert words_of(operator, turn) == ("", "Its tool calls have ended; a worker continues it within seconds.")
    Turn.objects.update(notified_at=from_now(-40))
    assert words_of(operator, turn)[0] == "late"


def test_a_retry_says_when_and_why(operator, say, worker):
    worker()
    turn = advance(say(script({"fail": "unavailable"})))
    Turn.objects.update(run_after=from_now(30))
    urgency, words = words_of(operator, turn)
    assert urgency == ""
    assert re.fullmatch(
        r"The model's provider cannot be reached, or fails\. It failed once \(llm_unavailable: as scripted\);"
        r" tried again in (30|29) s, at \d\d:\d\d:\d\d\.",
        words,
    )
    Turn.objects.update(run_after=from_now(-45))
    urgency, words = words_of(operator, turn)
    assert urgency == "late"
    assert words.startswith("It is to be taken up again, and no worker has come for 45 s.")


def test_a_models_silence_is_told_and_far_past_its_usual_time_it_is_late(operator, say, worker, owner):
    worker()
    turn = say("Hello")
    lease.claim(turn.pk, worker="worker-1")
    Turn.objects.filter(pk=turn.pk).update(stepped_at=from_now(-27))
    assert re.fullmatch(r"Waiting for model gpt-4.1-mini for (2[7-9]|3\d) s\.", words_of(operator, turn)[1])
    for _ in range(3):
        other = say("Hello", conversation=inbox.start_conversation(owner_id=owner.pk, metadata={}))
        Turn.objects.filter(pk=other.pk).update(status="succeeded", model_calls=2, model_ms=20_000)
    Turn.objects.filter(pk=turn.pk).update(stepped_at=from_now(-27))
    urgency, words = words_of(operator, turn)
    assert urgency == ""
    assert re.fullmatch(r"Waiting for model gpt-4.1-mini for (2[7-9]|3\d) s; it usually takes 10 s\.", words)
    Turn.objects.filter(pk=turn.pk).update(stepped_at=from_now(-51))
    urgency, words = words_of(operator, turn)
    assert urgency == "late"
    assert re.fullmatch(r"Waiting for model gpt-4.1-mini for 5\d s; far past its usual 10 s\.", words)
    page = operator.get(reverse("admin:conversations_turn_change", args=[turn.pk])).content.decode()
    assert "far past its usual 10 s" in page
    Turn.objects.filter(pk=turn.pk).update(model="gpt\u202e4")
    assert "\u202e" not in look(operator).content.decode()


def test_a_step_that_is_stored_begins_the_wait_anew(say, tool_settings):
    tool_settings("time")
    turn = advance(say("What time is it?"))
    Turn.objects.update(stepped_at=from_now(-600))
    run_call(ToolCall.objects.get(turn_id=turn.pk))
    assert advance(turn).status == TurnStatus.SUCCEEDED
    turn.refresh_from_db()
    assert (turn.ended_at - turn.stepped_at).total_seconds() < 300


def test_failed_turns_are_asked_again_one_or_many(operator, say, owner):
    talks = [inbox.start_conversation(owner_id=owner.pk, metadata={}) for _ in range(3)]
    failed = [advance(say(script({"fail": "auth"}), conversation=talk)) for talk in talks]
    single = re.search(r'formaction="([^"]*/ask-again/)"', look(operator).content.decode())
    assert operator.post(single[1]).status_code == 302
    assert Turn.objects.filter(status="queued").count() == 1
    asked = ask(operator, "ask_again", *failed, next=PAGE)
    assert (asked.status_code, Turn.objects.count()) == (200, 4)
    for path in (f"{PAGE}turns/", "/admin/conversations/turn/"):
        done = ask(operator, "ask_again", *failed, path=path, next=PAGE, confirmed="yes", reason="They are back.")
        assert (done.status_code, done.url) == (302, PAGE)
    assert Turn.objects.filter(status="queued").count() == 3, "one was asked twice"
    assert LogEntry.objects.filter(change_message="Asked again: They are back.").count() == 2
    shown = look(operator).content.decode()
    assert shown.count("Asked again as") == 3
    assert "ask-again/" not in shown
    page = operator.get(reverse("admin:conversations_turn_change", args=[failed[0].pk])).content.decode()
    assert "as turn 2" in page


def test_only_failed_turns_are_asked_again(operator, say):
    turn = say("Hello")
    done = ask(operator, "ask_again", turn, confirmed="yes", reason="x")
    assert (done.status_code, Turn.objects.count(), LogEntry.objects.count()) == (302, 1, 0)


def test_stuck_ones_come_first_then_late_ones(operator, owner, worker):
    def turn_in_a_conversation_of_its_own():
        conversation = inbox.start_conversation(owner_id=owner.pk, metadata={})
        return inbox.receive(Incoming("Hello"), conversation=conversation, request_id="r")

    fine, late, stuck = (turn_in_a_conversation_of_its_own() for _ in range(3))
    lease.claim(stuck.pk, worker="gone")
    Turn.objects.filter(pk=stuck.pk).update(lease_until=from_now(-9))
    Turn.objects.filter(pk=late.pk).update(notified_at=from_now(-99))
    shown = look(operator)
    assert [each.turn.pk for each in shown.context["found"]] == [stuck.pk, late.pk, fine.pk]
    assert "1 stuck, 1 late" in shown.content.decode()
    only = look(operator, state="running").context
    assert [each.turn.pk for each in only["found"]] == [stuck.pk]
    assert {each["name"]: each["count"] for each in only["choices"]} == {
        "all": 3,
        "running": 1,
        "waiting": 0,
        "queued": 2,
        "held": 0,
    }
    assert len(look(operator, state="nonsense").context["found"]) == 3


def test_it_shows_a_bounded_number_and_says_how_many_there_are(operator, say, monkeypatch):
    monkeypatch.setattr("nanohost.console.queue_page.MAX_TURNS", 2)
    for number in range(5):
        say(str(number))
    shown = look(operator)
    assert len(shown.context["found"]) == 2
    assert "3 more" in shown.content.decode()
    assert operator.get(shown.context["turns_link"]).context["cl"].result_count == 5


def test_it_asks_as_much_for_many_turns_as_for_few(operator, say, owner, tool_settings):
    tool_settings("time")

    def fill(number):
        for _ in range(number):
            conversation = inbox.start_conversation(owner_id=owner.pk, metadata={})
            advance(say("What time is it?", conversation=conversation))
            say("behind", conversation=conversation)
            Worker.objects.create(
                name=f"w{Worker.objects.count()}", version="0", turns_most=1, heartbeat_at=timezone.now()
            )
        with CaptureQueriesContext(
            connection,
        ) as asked:
            look(operator)
        return len(asked.captured_queries)

    assert fill(2) == fill(10) <= 40


def test_what_strangers_wrote_is_shown_as_text(operator, say, conversation, worker):
    worker(name=HOSTILE, version=HOSTILE)
    type(conversation).objects.update(key=HOSTILE)
    turn = say("Hello")
    lease.claim(turn.pk, worker=HOSTILE)
    failed = say("again")
    Turn.objects.filter(pk=failed.pk).update(status="failed", error_code=HOSTILE, error_detail=HOSTILE)
    intake.pause(by=HOSTILE, because=HOSTILE)
    for answer in (
        look(operator),
        operator.post(f"{PAGE}turns/", {"action": "fail_turns", "_selected_action": [turn.pk]}),
        operator.get("/admin/"),
    ):
        assert HOSTILE not in answer.content.decode()
        assert "&lt;script&gt;" in answer.content.decode()


def test_turns_that_failed_lately_are_told_in_plain_words(operator, say):
    turn = say("Hello")
    Turn.objects.filter(pk=turn.pk).update(status="failed", error_code="llm_auth", error_detail="401")
    shown = look(operator).content.decode()
    assert "refused the server&#x27;s key" in shown
    Turn.objects.update(created_at=timezone.now() - timedelta(hours=2))
    assert look(operator).context["failed"] == []


# --- what it does -----------------------------------------------------------------------------------------------------


def ask(client, action, *turns, path=f"{PAGE}turns/", **fields):
    return client.post(path, {"action": action, "_selected_action": [turn.pk for turn in turns], **fields})


@pytest.mark.parametrize(
    ("action", "status"),
    [("cancel_turns", TurnStatus.CANCELLED), ("fail_turns", TurnStatus.FAILED), ("requeue_turns", TurnStatus.QUEUED)],
)
@pytest.mark.parametrize("path", [f"{PAGE}turns/", "/admin/conversations/turn/"])
def test_one_or_many_are_acted_on_once_it_is_confirmed_with_a_reason(operator, say, action, status, path):
    turns = [say("one"), say("two")]
    Turn.objects.update(notified_at=from_now(-99))
    asked = ask(operator, action, *turns, path=path, next=PAGE)
    assert (asked.status_code, LogEntry.objects.count()) == (200, 0)
    assert 'name="reason"' in asked.content.decode()
    for skipped in ({"reason": "x"}, {"reason": "x", "confirmed": "no"}, {"reason": "x", "confirmed": ""}):
        answer = ask(operator, action, *turns, path=path, next=PAGE, **skipped)
        assert 'name="confirmed" value="yes"' in answer.content.decode()
    for blank in (" ", "\0 \0"):
        missing = ask(operator, action, *turns, path=path, next=PAGE, confirmed="yes", reason=blank)
        assert (missing.status_code, LogEntry.objects.count()) == (400, 0)
    assert Turn.objects.filter(status="queued", notified_at__lt=from_now(-90)).count() == 2
    assert LogEntry.objects.count() == 0
    done = ask(operator, action, *turns, path=path, next=PAGE, confirmed="yes", reason="It is three in the morning.")
    assert (done.status_code, done.url) == (302, PAGE)
    assert set(Turn.objects.values_list("status", flat=True)) == {status}
    assert Turn.objects.filter(notified_at__lt=from_now(-90)).exists() is (action != "requeue_turns")
    logged = LogEntry.objects.all()
    assert {entry.object_id for entry in logged} == {str(turn.pk) for turn in turns}
    assert {entry.user.username for entry in logged} == {"of operator"}
    assert all("It is three in the morning." in entry.get_change_message() for entry in logged)
    history = f"/admin/conversations/turn/{turns[0].pk}/history/"
    for shown in (look(operator), operator.get(history, follow=True)):
        assert "It is three in the morning." in shown.content.decode()
    assert history in look(operator).content.decode()


def test_the_reason_of_a_failed_turn_is_what_its_client_is_told(operator, say):
    turn = say("Hello")
    ask(operator, "fail_turns", turn, confirmed="yes", reason="The model is withdrawn.")
    turn.refresh_from_db()
    assert (turn.error_code, turn.error_detail) == ("turn_failed_by_operator", "The model is withdrawn.")


def test_what_has_ended_is_left_alone(operator, say):
    turn = advance(say("Hello"))
    answer = ask(operator, "cancel_turns", turn, confirmed="yes", reason="x")
    assert answer.status_code == 302
    turn.refresh_from_db()
    assert (turn.status, LogEntry.objects.count()) == ("succeeded", 0)


def test_a_secret_is_taken_out_of_a_reason_wherever_it_is_cut(operator, say):
    secret = "sk-abcdefghijklmnopqrstuvwxyz"
    turn = say("Hello")
    ask(operator, "fail_turns", turn, confirmed="yes", reason="x" * (MAX_REASON - 8) + " " + secret)
    operator.post(f"{PAGE}intake/", {"action": "pause", "reason": "x" * (MAX_REASON - 8) + " " + secret})
    turn.refresh_from_db()
    kept = (turn.error_detail, LogEntry.objects.latest("pk").change_message, IntakePause.objects.get().because)
    assert not any("sk-" in each for each in kept)


def test_characters_that_turn_the_text_around_are_named(operator, say):
    ask(operator, "fail_turns", say("Hello"), confirmed="yes", reason="a\u202eb")
    operator.post(f"{PAGE}intake/", {"action": "pause", "reason": "c\u202ed"})
    for page in (PAGE, "/admin/"):
        html = operator.get(page).content.decode()
        assert "\u202e" not in html
        assert "U+202E" in html


@pytest.mark.parametrize("back", ["https://evil.example/", "//evil.example", "javascript:alert(1)", "/api/v1/", ""])
def test_nobody_is_sent_elsewhere_afterwards(operator, say, back):
    done = ask(operator, "cancel_turns", say("Hello"), confirmed="yes", reason="x", next=back)
    assert done.url == PAGE


@pytest.mark.parametrize("chosen", [[], ["nonsense"], ["01900000-0000-7000-8000-000000000000"]])
def test_nothing_chosen_is_nothing_done(operator, chosen):
    answer = operator.post(f"{PAGE}turns/", {"action": "cancel_turns", "_selected_action": chosen})
    assert answer.status_code == 302


def test_too_many_are_not_done_in_half(operator, say, monkeypatch):
    monkeypatch.setattr("conversations.admin.bulk_actions.MAX_AT_ONCE", 1)
    ask(operator, "cancel_turns", say("one"), say("two"), confirmed="yes", reason="x")
    assert set(Turn.objects.values_list("status", flat=True)) == {"queued"}


# --- who may ----------------------------------------------------------------------------------------------------------


def test_a_viewer_sees_it_and_is_offered_nothing(client_of, say):
    Turn.objects.filter(pk=say("Hello").pk).update(notified_at=from_now(-99))
    shown = look(client_of(VIEWER)).content.decode()
    for offered in ("cancel_turns", "Pause intake", "Notify again", 'type="checkbox" name="_selected_action"'):
        assert offered not in shown
    assert "Notify again" in look(client_of(OPERATOR)).content.decode()


@pytest.mark.parametrize("role", [VIEWER, "nobody"])
def test_nobody_else_does_anything(client_of, say, role):
    turn = say("Hello")
    if role == "nobody":
        client = Client()
        client.force_login(OwnerFactory(is_staff=True))
        assert client.get(PAGE).status_code == 403
    else:
        client = client_of(role)
    intake.pause(by="anna", because="x")
    for action in ("cancel_turns", "fail_turns", "requeue_turns", "ask_again", "delete_selected", ""):
        assert ask(client, action, turn, confirmed="yes", reason="x").status_code == 403
        ask(client, action, turn, path="/admin/conversations/turn/", confirmed="yes", reason="x")
    assert client.post(f"{PAGE}notify/").status_code == 403
    for fields in ({"action": "resume"}, {"action": "pause", "reason": "x"}, {}):
        assert client.post(f"{PAGE}intake/", fields).status_code == 403
    turn.refresh_from_db()
    assert (turn.status, IntakePause.objects.count(), LogEntry.objects.count()) == ("queued", 1, 0)


def test_who_may_requeue_may_not_fail(say):
    sync_roles()
    user = OwnerFactory(is_staff=True)
    user.user_permissions.add(*Permission.objects.filter(codename__in=["requeue_turn", "view_turn", "view_worker"]))
    client = Client()
    client.force_login(user)
    turn = say("Hello")
    assert ask(client, "fail_turns", turn, confirmed="yes", reason="x").status_code == 403
    assert ask(client, "requeue_turns", turn, confirmed="yes", reason="x").status_code == 302
    assert "fail_turns" not in look(client).content.decode()


def test_actions_are_posted_with_a_token(say):
    client = Client(enforce_csrf_checks=True)
    client.force_login(OwnerFactory(is_staff=True, is_superuser=True))
    for path in ("turns/", "notify/", "intake/"):
        assert client.post(f"{PAGE}{path}", {"action": "resume"}).status_code == 403
        assert client.get(f"{PAGE}{path}").status_code == (200 if path == "intake/" else 405)


# --- the intake -------------------------------------------------------------------------------------------------------


def test_the_intake_is_paused_drains_and_is_resumed(operator, say):
    turn = say("Hello")
    assert 'name="reason"' in operator.get(f"{PAGE}intake/").content.decode()
    assert operator.post(f"{PAGE}intake/", {"action": "pause", "reason": " "}).status_code == 400
    assert intake.current_pause() is None
    operator.post(f"{PAGE}intake/", {"action": "pause", "reason": "deploying 0.2"})
    pause = intake.current_pause()
    assert (pause.paused_by, pause.because) == ("of operator", "deploying 0.2")
    shown = look(operator).content.decode()
    for words in ("Draining", "0 running, 0 waiting, 1 queued", "Resume intake"):
        assert words in shown
    assert advance(turn).status == TurnStatus.SUCCEEDED
    say("of a schedule")
    shown = look(operator)
    for words in ("Drained", "0 running, 0 waiting, 0 queued, 1 held until the intake is resumed"):
        assert words in shown.content.decode()
    (held,) = look(operator, state="held").context["found"]
    assert held.turn.waiting_for == WaitingFor.INTAKE
    operator.post(f"{PAGE}intake/", {"action": "pause", "reason": "again"})
    assert intake.current_pause().because == "deploying 0.2"
    operator.post(f"{PAGE}intake/", {"action": "resume"})
    assert intake.current_pause() is None
    assert [entry.get_change_message() for entry in LogEntry.objects.order_by("pk")] == [
        "Paused: deploying 0.2",
        "Resumed",
    ]


def test_every_page_says_that_the_intake_is_paused_and_strangers_are_not_told(operator):
    pages = ["/admin/", PAGE, "/admin/conversations/turn/", "/admin/password_change/", f"{PAGE}intake/"]
    assert not [page for page in pages if "intake-banner" in operator.get(page).content.decode()]
    intake.pause(by="anna", because="deploying 0.2")
    for page in pages:
        shown = operator.get(page).content.decode()
        assert "Intake is paused</strong> by anna since" in shown, page
        assert "deploying 0.2" in shown
    assert "intake-banner" not in Client().get("/admin/login/").content.decode()


# --- the broker's view ------------------------------------------------------------------------------------------------


def line(client, name):
    (found,) = [each for each in look(client).context["lines"] if each.kind.queue == name]
    return found


def test_notifications_are_told_beside_rows(operator, say):
    doorbell.purge()
    say("Hello")
    found = line(operator, "turns")
    assert found.rows == 1
    if shapes.shape() == shapes.EMBEDDED:
        assert found.notifications is None
        assert "No broker: this host runs as a single process." in look(operator).content.decode()
    else:
        assert found.notifications == 1
        assert "1 notification waits for turns, and no worker listens" in look(operator).content.decode()


def test_what_nobody_came_for_is_named_and_notified_again(operator, say, worker):
    worker()
    doorbell.purge()
    turn = say("Hello")
    doorbell.purge()
    Turn.objects.update(notified_at=from_now(-40))
    assert "Workers were notified of 1 turn more than 30 s ago, and none has come." in look(operator).content.decode()
    assert operator.post(f"{PAGE}notify/").url == PAGE
    assert list(doorbell.notifications()) == [("turn", turn.pk)]
    assert "No backlog." in look(operator).content.decode()
    assert LogEntry.objects.get().get_change_message() == "Notified again of 1"


@pytest.fixture
def broker_at(settings):
    def point(port):
        settings.REDIS_URL = f"redis://127.0.0.1:{port}/0"

    return point


def test_a_broker_that_is_away_is_told_at_once_and_the_page_works(operator, say, broker_at):
    say("Hello")
    with SilentBroker() as silent:
        for port in (free_port(), silent.port):
            broker_at(port)
            began = time.monotonic()
            with pytest.raises(broker.BrokerAway):
                broker.waiting_notifications()
            assert time.monotonic() - began < 1
            shown = look(operator)
            assert "The broker does not answer" in shown.content.decode()
            assert len(shown.context["found"]) == 1


@pytest.mark.production(reason="it has a broker")
def test_a_broker_that_answers_with_an_error_is_away(operator):
    options = settings.CELERY_BROKER_TRANSPORT_OPTIONS
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        key = options.get("global_keyprefix", "") + "turns"
        client.delete(key)
        client.set(key, "no list")
        try:
            assert "The broker does not answer" in look(operator).content.decode()
        finally:
            client.delete(key)


# --- workers ----------------------------------------------------------------------------------------------------------


def another(owner):
    return inbox.start_conversation(owner_id=owner.pk, metadata={})


def test_workers_are_told_with_their_load_and_the_silent_ones_marked(operator, worker, say, owner):
    for name in ("alive", "silent", "full"):
        lease.claim(say("Hello", conversation=another(owner)).pk, worker=name)
    worker(name="alive", turns_most=200, version="9.9")
    worker(name="silent", silent=120)
    worker(name="full", turns_most=1)
    worker(name="ended", ended_at=timezone.now())
    shown = look(operator)
    assert {each["worker"].name: (each["worker"].is_alive, each["is_full"]) for each in shown.context["workers"]} == {
        "alive": (True, False),
        "full": (True, True),
        "silent": (False, False),
    }
    for words in (
        "1 of 200",
        "0 of 200",
        "1 of 1 <strong",
        "9.9 (this page:",
        '<strong class="stuck">offline</strong> <time data-ago',
        ">2 min ago</time>",
    ):
        assert words in shown.content.decode()


def test_the_pools_of_workers_are_shown_by_the_page_and_in_the_list(operator, worker):
    worker(name="busy", pool_used=3, pool_most=12, pool_waiting=2)
    worker(name="idle", pool_used=0, pool_most=11, pool_waiting=0)
    worker(name="without")
    worker(name="dead", pool_used=5, pool_most=13, silent=120)
    listed = operator.get(reverse("admin:conversations_worker_changelist"))
    for told in (look(operator).content.decode(), listed.content.decode()):
        assert "3 of 12, 2 waiting" in told
        assert "0 of 11" in told
        assert "5 of 13" not in told
        assert "<td>none</td>" in told or "none<" in told


def test_numbers_that_are_told_in_several_places_agree(operator, worker, say, owner, tool_settings, monkeypatch):
    tool_settings("time")
    worker(name="worker-1")
    worker(name="dead", silent=120)
    for name in ("worker-1", "dead"):
        lease.claim(say("Hello", conversation=another(owner)).pk, worker=name)
    for _ in range(3):
        advance(say("What time is it?", conversation=another(owner)))  # each waits for its tool
    say("queued", conversation=another(owner))
    intake.pause(by="anna", because="x")
    for _ in range(4):
        say("held", conversation=another(owner))
    expected = {"queued": 1, "running": 2, "waiting": 3, "held": 4}
    page = look(operator)
    assert "2 running, 3 waiting, 1 queued, 4 held" in page.content.decode()
    assert {each["name"]: each["count"] for each in page.context["choices"]} == expected | {"all": 10}
    assert {each["worker"].name: each["held"] for each in page.context["workers"]} == {"worker-1": 1, "dead": 0}
    overview = operator.get("/admin/").context["overview"]
    assert {each["status"]: each["count"] for each in overview["open"]} == expected
    for each in overview["open"]:
        assert operator.get(each["link"]).context["cl"].result_count == each["count"], each
    assert overview["queued"] == 1
    monkeypatch.setattr(settings, "METRICS_TOKEN", "sesame")
    told = operator.get("/metrics", headers={"Authorization": "Bearer sesame"}).content.decode()
    for state, number in expected.items():
        assert f'nanohost_turns_open{{status="{state}"}} {number}.0' in told
    workers = operator.get("/admin/conversations/worker/").content.decode()
    shown = dict(re.findall(r">(worker-1|dead)<.*?field-holds[^>]*>(\d+)<", workers, re.DOTALL))
    assert shown == {"worker-1": "1", "dead": "0"}


def test_it_stands_first_at_the_side(operator):
    shown = look(operator).content.decode()
    assert shown.index(f'href="{reverse("queue")}"') < shown.index('href="/admin/conversations/conversation/"')
