"""What the clock has an agent say goes to a destination that it was given, once, and to no other."""

from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from agent.models import Agent, AgentVersion
from conversations.channel_models import Chat, Destination
from conversations.engine import outgoing
from conversations.models import Conversation, Delivery, DeliveryStatus, Turn
from scheduler import runs, series
from scheduler.check_in import ask_agents
from scheduler.check_in import settle as settle_check_ins
from scheduler.errors import BadSchedule
from scheduler.models import CheckIn, Schedule
from tests.support import tool_calls
from tests.support.delivering import deliver
from tests.support.openai_server import completion
from tests.support.platforms import WebhookProgram
from tests.support.threads import in_threads
from tests.support.working import settle
from tools.models import CallStatus

pytestmark = pytest.mark.django_db(transaction=True)

SOON = "2099-05-05T09:00"


@pytest.fixture
def boss(settings, owner):
    """A program that the agent may write to as boss, in a chat that has seen nothing yet."""
    program = WebhookProgram(settings)
    channel = program.channel(owner)
    program.tell("Hello", chatId="43")
    Turn.objects.all().delete()
    program.given = Destination.objects.create(agent=channel.agent, name="boss", chat=Chat.objects.get())
    yield program
    program.close()


def made(owner, **wishes) -> Schedule:
    return series.create(owner_id=owner.pk, prompt="What is new?", at=SOON, **wishes)


def run(schedule: Schedule):
    """It has run, and the clock has seen how; the run, as it then is."""
    ran = series.run_now(schedule)
    settle(Turn.objects.open())
    runs.settle(now=timezone.now())
    ran.refresh_from_db()
    return ran


def test_a_schedules_answer_goes_to_its_destination_once(boss, owner):
    schedule = made(owner, deliver_to={"destination": "boss"})
    ran = series.run_now(schedule)
    settle(Turn.objects.open())
    assert not Delivery.objects.exists()
    in_threads([lambda: runs.settle(now=timezone.now()) for _ in range(4)])
    runs.settle(now=timezone.now())
    (row,) = deliver(*Delivery.objects.all())
    assert (row.status, row.recipient, row.turn_id) == (DeliveryStatus.DELIVERED, "boss", ran.turn_id)
    assert [(each.chat_id, each.text) for each in boss.sent] == [("43", "You said: What is new?")]


def test_where_it_speaks_anyway_it_is_not_said_twice(boss, owner):
    boss.tell("Hello", chatId="43", event_id="event-2")
    settle(Turn.objects.open())
    there = Conversation.objects.get(key="shop:43")
    before = Delivery.objects.count()
    run(made(owner, conversation_id=there.pk, deliver_to={"destination": "boss"}))
    assert Delivery.objects.count() == before + 1


def test_what_was_taken_back_is_not_written_to_and_the_schedule_is_paused_in_the_end(boss, owner, settings):
    settings.SCHEDULE_MAX_FAILURES = 2
    schedule = made(owner, deliver_to={"destination": "boss"})
    boss.given.delete()
    for _ in (0, 1):
        ran = run(schedule)
        assert (ran.state, Delivery.objects.count()) == ("failed", 0)
        assert "There is no destination named 'boss' for this agent; there are: none." in ran.error
    schedule.refresh_from_db()
    assert (schedule.state, schedule.failures) == ("paused", 2)


def test_only_what_the_agent_was_given_can_be_wished(boss, owner, admin_client):
    with pytest.raises(BadSchedule, match=r"There is no destination named 'public'.*boss, origin"):
        made(owner, deliver_to={"destination": "public"})
    schedule = made(owner, deliver_to={"destination": "boss"})
    with pytest.raises(BadSchedule, match="'public'"):
        series.update(schedule, deliver_to={"destination": "public"})
    page = reverse("admin:scheduler_schedule_change", args=[schedule.pk])
    assert 'value="boss"' in admin_client.get(page).content.decode()
    form = {"description": "", "prompt": "What?", "expression": "", "every_seconds": "", "at": SOON, "zone": ""}
    form |= {"missed": "once", "missed_most": 10}
    refused = admin_client.post(page, form | {"deliver_to": "public"}).content.decode()
    assert "There is no destination named &#x27;public&#x27;" in refused
    assert admin_client.post(page, form | {"deliver_to": ""}).status_code == 302
    schedule.refresh_from_db()
    assert schedule.deliver_to == {}


def test_an_agents_own_schedules_are_held_by_the_gate(boss, owner, conversation, tool_settings):
    tool_settings("schedule")

    def use(**arguments):
        whose = {"owner_id": owner.pk, "conversation_id": conversation.pk}
        may = conversation.agent.allowed_tools(destinations=lambda: outgoing.names(conversation.agent))
        return tool_calls.run_in_thread(
            tool_calls.ask("schedule", agent_tools=may, **whose, **arguments), agent_tools=may
        )

    wishes = {"action": "create", "prompt": "What is new?", "at": SOON}
    refused = use(**wishes, deliver_to="public")
    assert (refused.status, refused.rule) == (CallStatus.REJECTED, "destination")
    assert not Schedule.objects.exists()
    assert "its answers go to boss as well" in use(**wishes, deliver_to="boss").result
    row = Schedule.objects.get()
    assert use(action="update", id=str(row.pk), deliver_to="public").rule == "destination"
    assert use(action="update", id=str(row.pk), deliver_to="").rule == "destination"
    assert use(action="update", id=str(row.pk), prompt="What else?").status == CallStatus.SUCCESS
    row.refresh_from_db()
    assert row.destination == "boss"
    use(action="update", id=str(row.pk), deliver_to="origin")
    row.refresh_from_db()
    assert row.deliver_to == {}


@pytest.mark.parametrize(("named", "sent"), [("boss", ["The plants are dry."]), ("public", [])])
def test_what_a_check_in_tells_goes_to_its_destination(boss, owner, agent, admin_client, model, named, sent):
    form = {"document_heartbeat": "- [ ] Water the plants.", "check_in_owner": owner.pk, "check_in_deliver_to": named}
    assert admin_client.post(f"/admin/agent/agent/{agent.pk}/change/", form).status_code == 302
    assert "check_in_deliver_to" in AgentVersion.objects.latest("number").changed
    model.answer(completion("The plants are dry."))
    now = timezone.now()
    ask_agents(now=now)
    settle(Turn.objects.open())
    for _ in (0, 1):
        settle_check_ins(now=now + timedelta(minutes=1))
    deliver(*Delivery.objects.all())
    row = CheckIn.objects.get()
    assert ([each.text for each in boss.sent], row.state) == (sent, "told")
    assert ("There is no destination named 'public'" in row.error) == (not sent)
    assert Agent.objects.get(pk=agent.pk).check_in_deliver_to == named
