"""Agent profiles: who answers, with which model, within which limits, with which tools."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models, transaction
from django.forms.models import model_to_dict

from agent import answer_schemas
from agent.llm.providers import PROVIDERS
from nanohost.accounts import audit
from nanohost.lib.clock import Now
from tools.consent import validate_modes
from tools.custom import catalogue
from tools.gate import AgentTools
from tools.registry import ORIGIN
from tools.skills import uploads
from tools.taint import Policy
from tools.workspace.store import name_of, set_aside

DEFAULT_AGENT = "default"

# The documents that its prompt has, in their order; and the one that is looked at every half hour.
PROMPT_DOCUMENTS = ("AGENTS", "SOUL", "USER", "TOOLS", "IDENTITY")
HEARTBEAT = "HEARTBEAT"
DOCUMENTS = (*PROMPT_DOCUMENTS, HEARTBEAT)
# Those that are files of its workspaces, and the ones that its tools may change unless people say otherwise.
FILES = ("AGENTS", "SOUL", "USER", HEARTBEAT)
CHANGED_BY_TOOLS = ("USER", HEARTBEAT)

# Characters of one document: some 10,000 tokens, which every call of the model pays for.
MAX_DOCUMENT_CHARS = 40_000

# A prompt has 500 messages at most, and twice the window comes before a summary.
MAX_MEMORY_WINDOW = 200

# What an agent may keep for so many days only; docs/control.md says what each is.
MESSAGES, SENT, RESULTS, MEMORY, HISTORY = RETAINED = ("messages", "sent", "results", "memory", "history")
MAX_RETENTION_DAYS = 36_500


def validate_retention(retention: Any) -> None:
    """Numbers of days, by what is kept for so long."""
    if not isinstance(retention, dict) or not set(retention) <= set(RETAINED):
        raise ValidationError(f'Days by what is kept are needed, such as {{"messages": 90}}; of {", ".join(RETAINED)}.')
    if not all(type(days) is int and 0 < days <= MAX_RETENTION_DAYS for days in retention.values()):
        raise ValidationError(f"Days are a whole number above 0, {MAX_RETENTION_DAYS} at most.")


def validate_tool_names(names: Any) -> None:
    """The allow list is a list of names."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValidationError('A list of tool names is needed, such as ["time"].')


def validate_documents(documents: Any) -> None:
    """Documents are texts, by their names."""
    if not isinstance(documents, dict) or not all(isinstance(text, str) for text in documents.values()):
        raise ValidationError('Texts by name are needed, such as {"SOUL": "You are patient."}.')
    if unknown := sorted(set(documents) - set(DOCUMENTS)):
        raise ValidationError(f"There is no document {unknown[0]}; there are {', '.join(DOCUMENTS)}.")
    for name, text in documents.items():
        if len(text) > MAX_DOCUMENT_CHARS:
            raise ValidationError(f"{name} has {len(text)} characters; {MAX_DOCUMENT_CHARS} are allowed.")


def changed_by_tools() -> list[str]:
    """What new agents' tools may change."""
    return list(CHANGED_BY_TOOLS)


def validate_files(names: Any) -> None:
    """They are documents that stand in workspaces."""
    if not isinstance(names, list) or not set(map(str, names)) <= set(FILES):
        raise ValidationError(f'Names of documents are needed, such as ["USER"]; of {", ".join(FILES)}.')


class Taint(models.TextChoices):
    """What becomes of calls with effects or egress once a conversation is tainted."""

    OFF = "off", "off: they run all the same"
    APPROVE = "approve", "approve: each needs consent"
    REFUSE = "refuse", "refuse: none runs"


class Effort(models.TextChoices):
    """How much a model is to think before it answers."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


# More of them would only be one long failure.
MAX_FALLBACKS = 5


def validate_provider(name: str) -> None:
    """It is one of those there are."""
    if name and name not in PROVIDERS:
        raise ValidationError(f"There is no provider {name}; there are {', '.join(PROVIDERS)}.")


def validate_fallbacks(names: Any) -> None:
    """They are names of models."""
    if not isinstance(names, list) or not all(isinstance(each, str) and 0 < len(each) <= 128 for each in names):
        raise ValidationError('A list of names of models is needed, such as ["gpt-4.1-mini"].')
    if len(names) > MAX_FALLBACKS:
        raise ValidationError(f"{MAX_FALLBACKS} models at most.")


def validate_answer_schema(text: str) -> None:
    """It is a JSON Schema that answers can be held against."""
    try:
        answer_schemas.read_schema(text)
    except answer_schemas.InvalidFormat as error:
        raise ValidationError(str(error)) from None


class Agent(models.Model):
    """An agent profile. Conversations keep the agent they were started with."""

    name = models.SlugField(
        max_length=64,
        unique=True,
        help_text="Its name for programs: letters, digits, hyphens. It cannot be changed; the display name can.",
    )
    display_name = models.CharField(
        max_length=80,
        blank=True,
        default="",
        db_default="",
        help_text="The name that people see. Empty: its name.",
    )
    system_prompt = models.TextField(blank=True, help_text="What the model is told before every conversation.")
    documents = models.JSONField(
        default=dict,
        db_default=models.Value({}, models.JSONField()),
        blank=True,
        validators=[validate_documents],
        help_text="Further instructions, by name.",
    )
    written_documents = models.JSONField(
        "documents its tools may change",
        default=changed_by_tools,
        db_default=models.Value(list(CHANGED_BY_TOOLS), models.JSONField()),
        blank=True,
        validators=[validate_files],
        help_text="As files of its workspace, in untainted conversations of its check-in owner. All prompts have them.",
    )
    model = models.CharField(max_length=128, blank=True, help_text="Empty: LLM_MODEL_DEFAULT.")
    provider = models.CharField(
        max_length=32,
        blank=True,
        default="",
        db_default="",
        validators=[validate_provider],
        help_text="The provider of its models. Empty: chosen by the model's name, see docs/models.md.",
    )
    fallback_models = models.JSONField(
        default=list,
        db_default=models.Value([], models.JSONField()),
        blank=True,
        validators=[validate_fallbacks],
        help_text="Models to use instead, in this order, while the model fails or is at its limit.",
    )
    reasoning_effort = models.CharField(
        max_length=6,
        choices=Effort.choices,
        blank=True,
        default="",
        db_default="",
        help_text="How much its models should reason, if they support it. Empty: the provider's default.",
    )
    # As text: a database's own JSON keeps no order of keys, in which a model writes its answer.
    answer_schema = models.TextField(
        blank=True,
        default="",
        db_default="",
        validators=[validate_answer_schema],
        help_text="A JSON Schema for its answers, which are then JSON. Empty: answers are text.",
    )
    temperature = models.FloatField(
        null=True,
        blank=True,
        validators=[MinValueValidator(0), MaxValueValidator(2)],
        help_text="Sampling temperature, from 0 to 2. Empty: the provider's default.",
    )
    memory_window = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_MEMORY_WINDOW)],
        help_text="Messages that every prompt has as they were said; past twice as many, the older ones are summarised."
        " Empty: MEMORY_WINDOW and MEMORY_COMPACT_AFTER.",
    )
    context_window = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1024)],
        help_text="Tokens its model takes, prompt and answer together. Empty: LLM_CONTEXT_WINDOW.",
    )
    output_reserve = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(128)],
        help_text="Tokens of that window reserved for the answer. Empty: LLM_OUTPUT_RESERVE.",
    )
    every_tool = models.BooleanField(default=False, help_text="May use every tool that is enabled.")
    tools = models.JSONField(
        default=list,
        blank=True,
        validators=[validate_tool_names],
        help_text="If it may not use every tool: the names of those it may use.",
    )
    approvals = models.JSONField(
        "consent",
        default=dict,
        db_default=models.Value({}, models.JSONField()),
        blank=True,
        validators=[validate_modes],
        help_text='By tool, when its calls wait for consent: never, tainted or always; "*" is every other tool. '
        "What a tool's own page asks for stays asked for.",
    )
    max_tool_rounds = models.PositiveIntegerField(
        null=True, blank=True, help_text="Rounds of tool calls in one turn. Empty: AGENT_MAX_TOOL_ROUNDS."
    )
    max_turn_tokens = models.PositiveIntegerField(
        null=True, blank=True, help_text="Tokens one turn may use, prompts and answers together. Empty: no limit."
    )
    is_public = models.BooleanField(
        verbose_name="public",
        default=False,
        db_default=False,
        help_text="API keys that name no agents of their own may use it.",
    )
    taint = models.CharField(
        max_length=7,
        choices=Taint.choices,
        default=Taint.APPROVE,
        db_default=Taint.OFF,
        help_text="Once untrusted text, such as a web page, has entered a conversation: what becomes of calls of tools "
        "that have effects or reach other hosts.",
    )
    may_reschedule = models.BooleanField(
        default=False,
        db_default=False,
        help_text="May use the tool schedule also in turns that a schedule or a check-in has begun.",
    )
    check_in_owner = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        verbose_name="check-in owner",
        db_column="heartbeat_owner_id",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        help_text="The owner for whom its document HEARTBEAT is checked. Empty: it is not checked.",
    )
    check_in_minutes = models.PositiveIntegerField(
        verbose_name="check-in minutes",
        db_column="heartbeat_minutes",
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(1440)],
        help_text="Interval between checks, in minutes. Empty: HEARTBEAT_MINUTES.",
    )
    check_in_deliver_to = models.CharField(
        verbose_name="check-in deliver to",
        max_length=32,
        blank=True,
        default="",
        db_default="",
        help_text="A destination of the agent, by name, that also receives its reports. Empty: none.",
    )
    retention = models.JSONField(
        default=dict,
        db_default=models.Value({}, models.JSONField()),
        blank=True,
        validators=[validate_retention],
        help_text="How many days each of these is kept: messages, sent, results, memory, history. What is not named is"
        " kept for ever.",
    )
    is_evaluated_first = models.BooleanField(
        "changes wait for their evaluation",
        default=False,
        db_default=False,
        help_text="A change that people make here is live once its sets of cases have passed with it, and not before.",
    )
    version = models.PositiveIntegerField(
        default=1,
        db_default=1,
        editable=False,
        help_text="Increased by each change; a turn records the one it ran with.",
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    @property
    def called(self) -> str:
        """What people call it."""
        return self.display_name or self.name

    def allowed_tools(
        self,
        *,
        tainted_by: str = "",
        destinations: Callable[[], Collection[str]] = lambda: (ORIGIN,),
        owner_id: int | None = None,
    ) -> AgentTools:
        """The allow list as the gate takes it. ``tainted_by``: from where untrusted text has entered the conversation
        that asks, if some has. ``destinations``: where it may write, by name. ``owner_id``: whose it is."""
        names = None if self.every_tool else frozenset(self.tools)
        policy: Policy = "off" if self.taint == Taint.OFF else "approve" if self.taint == Taint.APPROVE else "refuse"
        # What one owner has written there would instruct the agent when it works for others.
        is_its_owner = owner_id is not None and owner_id == self.check_in_owner_id
        return AgentTools(
            names=names,
            approvals=self.approvals,
            taint=policy,
            tainted_by=tainted_by,
            destinations=destinations,
            documents=frozenset(f"{name}.md" for name in self.written_documents if is_its_owner),
            workspace="" if owner_id is None else name_of(agent=self.name, owner_id=owner_id),
        )

    def own_model(self) -> str:
        """The model that is asked unless a request names another."""
        return self.model or settings.LLM_MODEL_DEFAULT

    def model_after(self, model: str, *, own: str) -> str:
        """Its next model, to be asked in the place of one; empty: there is none. ``own``: the one that was asked
        first."""
        further = [each for each in self.fallback_models if each != own]
        return next(iter(further[further.index(model) + 1 :] if model in further else further), "")

    def window(self) -> int:
        """How many messages a prompt has as they were said, at least."""
        return self.memory_window or settings.MEMORY_WINDOW

    def compact_after(self) -> int:
        """How many messages that no summary covers there may be."""
        return 2 * self.memory_window if self.memory_window else settings.MEMORY_COMPACT_AFTER

    def prompt_tokens(self) -> int:
        """Tokens that a prompt for this agent may have; at least half its window, however much is to be kept free."""
        window = self.context_window or settings.LLM_CONTEXT_WINDOW
        return max(window - self.answer_tokens(), window // 2)

    def answer_tokens(self) -> int:
        """Tokens that are kept free for an answer, and that it has at most where a budget applies."""
        return settings.LLM_OUTPUT_RESERVE if self.output_reserve is None else self.output_reserve

    def profile(self) -> dict[str, Any]:
        """What makes a version of it: all that people set."""
        return {_STORED_AS.get(name, name): value for name, value in model_to_dict(self, fields=PROFILE).items()}

    @classmethod
    def of_profile(cls, profile: Mapping[str, Any], *, pk: int | None = None) -> "Agent":
        """An agent as a version has it, to ask and not to save; without whom its check-ins are for. ``pk``: whose
        version it is."""
        fields = {name: _STORED_AS.get(name, name) for name in PROFILE if name != "check_in_owner"}
        return cls(pk=pk, **{name: profile[stored] for name, stored in fields.items() if stored in profile})

    def save_version(self, *, by: str) -> None:
        """Save what people have changed as a new version, if they have changed anything. ``by``: who they are."""
        with transaction.atomic():
            stored = Agent.objects.select_for_update().filter(pk=self.pk).first() if self.pk else None
            if stored and stored.profile() == self.profile():
                return
            self.version = self._next_version() if stored else 1
            self.save()
            was, became = stored.profile() if stored else {}, self.profile()
            changed = _changed(was, became) if stored else []
            AgentVersion.objects.create(
                agent=self, number=self.version, profile=became, changed=", ".join(changed)[:255], made_by=by
            )
            differ = [name for name in became if was.get(name) != became[name]]
            audit.record(
                "agent.changed" if stored else "agent.made",
                about=self,
                before={name: was[name] for name in differ} if stored else None,
                after={name: became[name] for name in differ},
            )

    def propose_version(self, *, by: str) -> "AgentVersion | None":
        """Store what people have changed as a version that is not live; None if they have changed nothing. One that
        waits already is given up for it. The agent stays as it is. ``by``: who they are."""
        with transaction.atomic():
            stored = Agent.objects.select_for_update().get(pk=self.pk)
            was, became = stored.profile(), self.profile()
            if was == became:
                return None
            waiting = AgentVersion.objects.filter(agent=stored, state=VersionState.PENDING)
            waiting.update(state=VersionState.REFUSED, why="Another change was made before its evaluation had ended.")
            return AgentVersion.objects.create(
                agent=stored,
                number=stored._next_version(),
                profile=became,
                changed=", ".join(_changed(was, became))[:255],
                made_by=by,
                state=VersionState.PENDING,
                base=stored.version,
            )

    def take_over(self, version: "AgentVersion", *, by: str) -> None:
        """Make it what a version is, as a new version that is live: to go back, or once one has passed. Whom its
        check-ins are for, and whether changes wait, stays."""
        with transaction.atomic():
            agent = Agent.objects.select_for_update().get(pk=self.pk)
            as_it_was = Agent.of_profile(version.profile)
            for name in PROFILE:
                if name not in _STAYS and _STORED_AS.get(name, name) in version.profile:
                    setattr(agent, name, getattr(as_it_was, name))
            agent.save_version(by=by)

    def _next_version(self) -> int:
        """Behind all there are, also those that are not live."""
        last = AgentVersion.objects.filter(agent=self).aggregate(last=models.Max("number"))["last"] or 0
        return max(int(last), self.version) + 1

    def remove(self) -> None:
        """Delete it, and tell the audit log what it was. How long it kept what it leaves behind holds on; its files
        stay for as long as their owners, and no other agent sees them."""
        with transaction.atomic():
            audit.record("agent.deleted", about=self, before=self.profile())
            kept = {"retention": self.retention, "deleted_at": Now()}
            DeletedAgent.objects.update_or_create(name=self.name, defaults=kept)
            self.delete()
            catalogue.forget(self.name)
            uploads.forget(self.name)
            transaction.on_commit(partial(set_aside, self.name))


# The fields of an agent that its versions keep.
PROFILE = (
    *("name", "display_name", "system_prompt", "documents", "model", "provider", "fallback_models", "reasoning_effort"),
    *("temperature", "answer_schema", "memory_window", "context_window", "output_reserve"),
    *("every_tool", "tools", "max_tool_rounds", "max_turn_tokens", "may_reschedule", "check_in_owner"),
    "is_public",
    "approvals",
    "taint",
    "written_documents",
    "check_in_minutes",
    "check_in_deliver_to",
    "retention",
    "is_evaluated_first",
)
# Whom and what a version is not about, when an agent becomes what it is in one.
_STAYS = ("name", "check_in_owner", "is_evaluated_first")
# What versions call those that had another name when the first of them were stored.
_STORED_AS = {"check_in_owner": "heartbeat_owner", "check_in_minutes": "heartbeat_minutes"}


def _changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Names of the fields and documents that differ."""
    before, after = before | before["documents"], after | after["documents"]
    names = [_STORED_AS.get(name, name) for name in (*PROFILE, *DOCUMENTS) if name != "documents"]
    return [name for name in names if before.get(name) != after.get(name)]


class VersionState(models.TextChoices):
    """Whether an agent was ever what a version is."""

    LIVE = "live"
    PENDING = "pending"
    PASSED = "passed"
    REFUSED = "refused"


class AgentVersion(models.Model):
    """What an agent was from one change to the next; or what a change would make of it, before its evaluation."""

    agent = models.ForeignKey(Agent, on_delete=models.CASCADE, related_name="versions", db_index=False)
    number = models.PositiveIntegerField(help_text="Counted from 1.")
    profile = models.JSONField(help_text="Its fields in this version.")
    changed = models.CharField(max_length=255, blank=True, help_text="Changes from the previous version.")
    made_by = models.CharField(max_length=200, blank=True, help_text="The name of a user of the admin.")
    state = models.CharField(
        max_length=7,
        choices=VersionState.choices,
        default=VersionState.LIVE,
        db_default=VersionState.LIVE,
        help_text="Pending: it waits for its evaluation. Passed: it became live, as a later version. Refused: see why.",
    )
    base = models.PositiveIntegerField(null=True, blank=True, help_text="The version that a pending one changes.")
    why = models.CharField(max_length=300, blank=True, default="", db_default="", help_text="Why it was refused.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["agent_id", "-number"]
        indexes = [
            models.Index(fields=["id"], condition=models.Q(state="pending"), name="agent_versions_that_wait"),
        ]
        constraints = [models.UniqueConstraint(fields=["agent", "number"], name="one_version_of_an_agent_a_number")]

    def __str__(self) -> str:
        return f"version {self.number}"

    def before(self) -> dict[str, Any]:
        """The profile of the version before; empty for the first."""
        known = AgentVersion.objects.filter(agent_id=self.agent_id, state=VersionState.LIVE)
        earlier = known.filter(number__lt=self.number).order_by("-number")
        profile: dict[str, Any] = earlier.values_list("profile", flat=True).first() or {}
        return profile

    def make_live(self) -> bool:
        """Make a pending version the agent's; False if it waits no longer, or the agent was changed since. That version
        is refused then: what was evaluated is not what would become live."""
        with transaction.atomic():
            agent = Agent.objects.select_for_update().get(pk=self.agent_id)
            waiting = AgentVersion.objects.filter(pk=self.pk, state=VersionState.PENDING)
            if agent.version != self.base:
                waiting.update(state=VersionState.REFUSED, why="The agent was changed meanwhile: make it again.")
                return False
            # The agent has it as a version of its own number, as it has what it goes back to.
            if waiting.update(state=VersionState.PASSED) != 1:
                return False
            agent.take_over(self, by=self.made_by)
        return True

    def refuse(self, why: str) -> None:
        """It does not become live, if it still waits."""
        AgentVersion.objects.filter(pk=self.pk, state=VersionState.PENDING).update(
            state=VersionState.REFUSED, why=why[:300]
        )


class DeletedAgent(models.Model):
    """An agent that is gone. What it leaves behind knows it by its name: calls of tools, memory and the log."""

    name = models.CharField(max_length=64, unique=True)
    retention = models.JSONField(help_text="Days to keep each kind of data; anything not listed is kept forever.")
    deleted_at = models.DateTimeField(help_text="When it was deleted, the last time if there were several of the name.")

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class ProviderOutage(models.Model):
    """A provider that has failed for several turns in a row, and was left alone for a while; one row a provider."""

    provider = models.CharField(max_length=32, unique=True, help_text="Name of the provider.")
    since = models.DateTimeField(null=True, help_text="Start of its latest outage.")
    until = models.DateTimeField(null=True, help_text="It is not asked before then. Empty: it is available.")
    ended_at = models.DateTimeField(null=True, help_text="End of its latest outage.")
    code = models.CharField(max_length=64, blank=True, default="", help_text="Its last error code.")
    times = models.PositiveIntegerField(default=0, help_text="Number of outages.")

    class Meta:
        verbose_name = "provider outage"
        ordering = ["provider"]

    def __str__(self) -> str:
        return self.provider


# Rows of their own room.
from agent.spending.models import Budget, BudgetPeriod, ModelPrice, Reservation  # noqa: E402, F401
