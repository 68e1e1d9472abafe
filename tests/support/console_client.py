"""Every page of the console there is, read from its registry: a page that is added later is looked at, too."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from axes.models import AccessAttempt
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import Group, User
from django.contrib.contenttypes.models import ContentType
from django.db.models import Model
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from django_celery_beat.models import ClockedSchedule, CrontabSchedule, SolarSchedule

from agent.models import Agent, AgentVersion, ProviderOutage
from agent.spending.models import Budget, ModelPrice
from conversations.channel_models import Channel, ChannelEvent, Chat, Destination, Sender
from conversations.engine import inbox, intake
from conversations.engine.incoming import Incoming
from conversations.feedback_models import Feedback
from conversations.models import (
    Attachment,
    AttachmentUse,
    CallerRound,
    Compaction,
    Conversation,
    DeferredMessage,
    Delivery,
    Message,
    Replay,
    ReplayCase,
    ReplayRun,
    ReplaySet,
    Share,
    StoredResponse,
    TaintedText,
    Turn,
    WebhookEndpoint,
    Worker,
)
from conversations.question_models import Question
from conversations.statuses import TurnStatus
from memory.models import HistoryEntry, Memory, MemoryVersion
from nanohost.accounts.models import ApiKey, LegalHold
from nanohost.console.models import Use
from nanohost.console.roles import ROLES
from nanohost.console.site import model_pages
from nanohost.lib.ids import new_id
from scheduler import series
from scheduler.models import CheckIn, JobRun, Schedule, ScheduleRun
from scheduler.system_jobs import sync_system_jobs
from tests.support.factories import OwnerFactory
from tools.custom.models import CustomTool
from tools.mcp.models import McpServer, McpTool
from tools.models import Approval, CallStatus, SettingChange, ToolCall, ToolSetting

ANONYMOUS, STRANGER, NOBODY = "anonymous", "no staff", "staff without a group"

HOSTILE = "<script>alert('1')</script>"

# Pages of a row besides Django's own, which only show.
READ = {
    "admin:conversations_conversation": ["transcript", "json", "jsonl"],
    "admin:conversations_replayrun": ["export"],
    "admin:conversations_turn": ["sent", "time"],
    "admin:agent_agent": ["whole", "files"],
}
# And those of a model.
READ_OF_MODEL = {
    "admin:tools_toolsetting": ["simulator", "skills"],
    "admin:tools_toolcall": ["tools_toolcall_export"],
    "admin:tools_settingchange": ["tools_settingchange_export"],
}


@dataclass(frozen=True)
class Page:
    """``view`` is Django's name of it; the page of a model, or of none."""

    view: str
    model: type[Model] | None
    address: str

    def __str__(self) -> str:
        return f"{self.model._meta.label_lower if self.model else 'console'} {self.view}"


def page(name: str, view: str = "changelist", *args: object) -> str:
    """The address of a page of the admin: ``page("tools_toolsetting", "change", pk)``."""
    return reverse(f"admin:{name}_{view}", args=args)


def make_rows(number: int) -> None:
    """``number`` of everything, each with hostile text in every column that strangers can reach."""
    for index in range(number):
        owner = OwnerFactory(username=f"owner{HOSTILE}{Conversation.objects.count()}")
        agent = Agent.objects.create(
            name=f"agent-{Agent.objects.count()}", system_prompt=HOSTILE, model=HOSTILE, tools=["time", HOSTILE]
        )
        conversation = inbox.start_conversation(owner_id=owner.pk, agent=agent.name, metadata={HOSTILE: HOSTILE})
        Conversation.objects.filter(pk=conversation.pk).update(key=f"{HOSTILE}{conversation.pk}")
        turn = inbox.receive(Incoming(HOSTILE, model=HOSTILE), conversation=conversation, request_id="request-1")
        Turn.objects.filter(pk=turn.pk).update(
            status=TurnStatus.FAILED, error_code=HOSTILE, error_detail=HOSTILE, worker=HOSTILE, idempotency_key=HOSTILE
        )
        Message.objects.create(
            conversation=conversation,
            turn=turn,
            seq=2,
            role="assistant",
            content=HOSTILE,
            tool_name=HOSTILE,
            tool_calls=[{"id": HOSTILE, "function": {"name": HOSTILE, "arguments": HOSTILE}}],
        )
        CallerRound.objects.create(
            turn=turn,
            number=0,
            calls=[{"id": HOSTILE, "function": {"name": HOSTILE, "arguments": HOSTILE}}],
            messages=1,
            prompt_tokens=1,
            completion_tokens=1,
            cached_tokens=0,
        )
        file = Attachment.objects.create(
            owner_id=owner.pk, sha256="0" * 64, path=f"{new_id()}", media_type=HOSTILE, size=1, text=HOSTILE,
            is_stored=True, used_at=timezone.now(),
        )  # fmt: skip
        AttachmentUse.objects.create(attachment=file, conversation=conversation, message_id=new_id(), name=HOSTILE)
        Share.objects.create(
            conversation=conversation, owner=owner, digest=new_id().hex, through_seq=2, expires_at=timezone.now()
        )
        TaintedText.objects.create(owner=owner, digest=new_id().hex, tainted_by=HOSTILE)
        StoredResponse.objects.create(
            id=StoredResponse.id_of(turn.pk, 0), turn=turn, number=0, asked={"instructions": HOSTILE}
        )
        ToolCall.objects.create(
            conversation_id=conversation.pk,
            turn_id=turn.pk,
            agent=HOSTILE,
            call_id=f"{HOSTILE}{index}",
            position=index,
            tool_name=HOSTILE,
            arguments=HOSTILE,
            arguments_hash="0" * 64,
            status=CallStatus.REJECTED,
            rule=HOSTILE,
            result=HOSTILE,
        )
        Approval.objects.create(
            call_id=new_id(),
            conversation_id=conversation.pk,
            turn_id=turn.pk,
            owner_id=owner.pk,
            agent=HOSTILE,
            tool_name=HOSTILE,
            rule=HOSTILE,
            arguments=HOSTILE,
            arguments_hash="0" * 64,
            proposed=HOSTILE,
            reason=HOSTILE,
            decided_by=HOSTILE,
            expires_at=timezone.now(),
        )
        Question.objects.create(
            conversation=conversation,
            turn_id=turn.pk,
            call_id=new_id(),
            owner_id=owner.pk,
            agent=HOSTILE,
            text=HOSTILE,
            options=[HOSTILE],
            answer=HOSTILE,
            answered_by=HOSTILE,
            expires_at=timezone.now(),
        )
        Compaction.objects.create(
            conversation=conversation, turn_id=turn.pk, keep_tokens=0, error=HOSTILE, model=HOSTILE
        )
        call = {"name": HOSTILE, "arguments": HOSTILE, "answer": HOSTILE, "source": HOSTILE}
        numbers = {"promptTokens": 1, "completionTokens": 1, "cost": None, "ms": 1, "modelCalls": 1}
        judge = {"kind": "judge", "model": HOSTILE, "prompt": HOSTILE}
        of_set = ReplaySet.objects.create(name=HOSTILE[:80] + str(ReplaySet.objects.count()), graders=[judge])
        ReplayCase.objects.create(of_set=of_set, turn=turn, expected={"words": HOSTILE})
        of_run = ReplayRun.objects.create(
            of_set=of_set,
            name=HOSTILE,
            asked_by=HOSTILE,
            changes={"model": HOSTILE},
            graders=[{"kind": HOSTILE, "prompt": HOSTILE}],
        )
        grade = {"kind": HOSTILE, "passed": False, "why": HOSTILE}
        Replay.objects.create(
            run=of_run, grades=[grade], expected={"words": HOSTILE},
            turn=turn, owner=owner, agent=agent, asked_by=HOSTILE, changes={"model": HOSTILE}, status="succeeded",
            model=HOSTILE, result={"words": HOSTILE, "calls": [call], "doubts": [HOSTILE], **numbers},
            error_code=HOSTILE, error_detail=HOSTILE,
        )  # fmt: skip
        Feedback.objects.create(turn=turn, by=HOSTILE, rating="down", comment=HOSTILE)
        whose = {"agent": HOSTILE, "owner": owner}
        Memory.objects.create(content=HOSTILE, notes=HOSTILE, version=1, **whose)
        MemoryVersion.objects.create(content=HOSTILE, base=0, model=HOSTILE, aside_because=HOSTILE, **whose)
        HistoryEntry.objects.create(content=HOSTILE, words="x", model=HOSTILE, happened_at=timezone.now(), **whose)
        DeferredMessage.objects.create(conversation=conversation, kind="wake", content=HOSTILE, idempotency_key=HOSTILE)
        AgentVersion.objects.create(agent=agent, number=1, profile={HOSTILE: HOSTILE}, made_by=HOSTILE)
        schedule = series.create(
            owner_id=owner.pk, agent=agent.name, prompt=HOSTILE, description=HOSTILE, every_seconds=60
        )
        Schedule.objects.filter(pk=schedule.pk).update(paused_because=HOSTILE)
        ScheduleRun.objects.create(schedule=schedule, slot=timezone.now(), state="failed", error=HOSTILE)
        today = timezone.localdate()
        CheckIn.objects.create(agent=agent, owner=owner, slot=timezone.now(), day=today, state="failed", error=HOSTILE)
        JobRun.objects.create(job=HOSTILE, did=HOSTILE, error=HOSTILE, started_at=timezone.now())
        Worker.objects.create(name=f"{HOSTILE}{new_id()}", version=HOSTILE, heartbeat_at=timezone.now(), turns_most=8)
        hook = WebhookEndpoint.objects.create(
            name=HOSTILE,
            url=f"https://example.org/{HOSTILE}",
            kinds=[HOSTILE],
            disabled_because=HOSTILE,
            made_by=HOSTILE,
        )
        channel = Channel.objects.create(
            name=HOSTILE[:24] + str(Channel.objects.count()), kind="webhook", agent=agent, owner=owner,
            settings={HOSTILE: HOSTILE}, error=HOSTILE, made_by=HOSTILE, seed="0" * 64,
        )  # fmt: skip
        Sender.objects.create(channel=channel, sender_id=HOSTILE, name=HOSTILE, last_at=timezone.now())
        chat = Chat.objects.create(channel=channel, owner=owner, key=HOSTILE, chat_id=HOSTILE, thread=HOSTILE)
        Destination.objects.create(agent=agent, name=HOSTILE[:32], chat=chat, made_by=HOSTILE)
        ChannelEvent.objects.create(channel=channel, external_id=HOSTILE)
        Delivery.objects.create(
            channel="chat", account=channel, chat=chat, number=1, kind=HOSTILE, data={"text": HOSTILE}, error=HOSTILE,
            recipient=HOSTILE, in_reply_to=HOSTILE, external_id=HOSTILE, expires_at=timezone.now(),
            conversation_id=conversation.pk, turn_id=turn.pk,
        )  # fmt: skip
        tries = [{"at": HOSTILE, "status": 500, "error": HOSTILE, "ms": 1}]
        Delivery.objects.create(
            endpoint=hook,
            kind=HOSTILE,
            data={HOSTILE: HOSTILE},
            owner_id=owner.pk,
            error=HOSTILE,
            tries=tries,
            expires_at=timezone.now(),
        )
        hour = {"hour": timezone.now(), "day": today, "api_key_id": 0}
        Use.objects.create(owner_id=owner.pk, model=HOSTILE, agent=HOSTILE, **hour)
        ApiKey.objects.issue(owner=owner)
        ToolSetting.objects.create(name=f"{HOSTILE}{ToolSetting.objects.count()}", enabled=True)
        Budget.objects.create(name=HOSTILE, whose="owner", owner=owner, measure="money", every="day", amount=1)
        ProviderOutage.objects.create(
            provider=f"<b>{ProviderOutage.objects.count()}", code=HOSTILE, until=timezone.now()
        )
        ModelPrice.objects.create(model=HOSTILE, prompt=1, completion=1, valid_from=timezone.now())
        server = McpServer.objects.create(
            name=f"s{McpServer.objects.count()}", command=HOSTILE, last_error=HOSTILE, unfit={HOSTILE: HOSTILE}
        )
        McpTool.objects.create(
            server=server,
            name=HOSTILE,
            full_name=f"mcp_s_{McpTool.objects.count()}",
            description=HOSTILE,
            schema={HOSTILE: HOSTILE},
            hash="0" * 64,
            seen_by=HOSTILE,
            seen_hash="1" * 64,
        )
        CustomTool.objects.create(
            workspace=HOSTILE,
            owner=owner,
            file=f"{HOSTILE}{CustomTool.objects.count()}",
            full_name=f"custom_{CustomTool.objects.count()}",
            source=HOSTILE,
            description=HOSTILE,
            schema={HOSTILE: HOSTILE},
            flagged=[HOSTILE],
            hash="0" * 64,
            seen_by=HOSTILE,
            seen_source=f"{HOSTILE} before",
            seen_hash="1" * 64,
        )
        SettingChange.objects.create(
            tool_name=HOSTILE, changed_by=HOSTILE, before={HOSTILE: HOSTILE}, after={HOSTILE: HOSTILE}
        )


def make_a_row_of_each() -> None:
    """A row on each page; see that there is one of a model that is new."""
    make_rows(1)
    LogEntry.objects.create(
        user=User.objects.first(),
        content_type=ContentType.objects.get_for_model(Turn),
        object_repr=HOSTILE,
        action_flag=CHANGE,
        change_message=HOSTILE,
    )
    intake.pause(by=HOSTILE, because=HOSTILE)
    sync_system_jobs()
    Group.objects.create(name="a group")
    ClockedSchedule.objects.create(clocked_time=timezone.now())
    CrontabSchedule.objects.create()
    SolarSchedule.objects.create(event="sunset", latitude=52.5, longitude=13.4)
    LegalHold.objects.create(kind="owner", owner_id=0, reason=HOSTILE, placed_by=HOSTILE)
    AccessAttempt.objects.create(username="x", ip_address="192.0.2.1", failures_since_start=1)


def get(client: Client, page: Page) -> Any:
    """The answer of a page, whole also if it comes in parts."""
    answer = client.get(page.address)
    if not answer.streaming:
        return answer
    return HttpResponse(b"".join(answer.streaming_content), status=answer.status_code, headers=answer.headers)


def pages() -> Iterator[Page]:
    """Every address of the console that needs no more than a row's key."""
    for view in ("index", "password_change", "jsi18n", "search"):
        yield Page(view, None, reverse(f"admin:{view}"))
    for view in (
        "queue",
        "queue_intake",
        "retention",
        "settings",
        "find",
        "usage",
        "usage_csv",
        "first_run",
        "colleague",
        "daily_summary",
    ):
        yield Page(view, None, reverse(view))
    for label in sorted({model._meta.app_label for model in model_pages()}):
        yield Page(f"app_list {label}", None, reverse("admin:app_list", args=[label]))
    for model in model_pages():
        row: Any = model._default_manager.first()
        assert row, f"tests/support/console_client.py makes no {model._meta.label}"
        name = f"admin:{model._meta.app_label}_{model._meta.model_name}"
        for view in ("changelist", "add"):
            yield Page(view, model, reverse(f"{name}_{view}"))
        for view in ("change", "history", "delete"):
            yield Page(view, model, reverse(f"{name}_{view}", args=[row.pk]))
        for view in READ.get(name, ()):
            yield Page(f"read {view}", model, reverse(f"{name}_{view}", args=[row.pk]))
        for view in READ_OF_MODEL.get(name, ()):
            yield Page(f"read {view}", model, reverse(f"admin:{view}"))
        if name == "admin:auth_user":
            yield Page("password", model, reverse("admin:auth_user_password_change", args=[row.pk]))


def member(role: str) -> User:
    """A new user of a role, or one of those who have none."""
    user = OwnerFactory(username=f"of {role}", is_staff=role != STRANGER)
    if role in ROLES:
        user.groups.add(Group.objects.get(name=role))
    return user


def client_of(role: str) -> Client:
    client = Client()
    if role != ANONYMOUS:
        client.force_login(member(role))
    return client
