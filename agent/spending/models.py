"""Prices of models; budgets, what is used of them, and what is reserved."""

from datetime import datetime
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator
from django.db import models, transaction
from django.forms.models import model_to_dict
from django.utils import timezone

from agent.spending.periods import Every, Period, period_of
from nanohost.accounts import audit
from nanohost.accounts.models import ApiKey

# Millionths of the currency: what money is counted in, in whole numbers.
MICRO = 1_000_000


def _price(help_text: str, **options: Any) -> "models.DecimalField[Any, Any]":
    return models.DecimalField(
        max_digits=12, decimal_places=6, validators=[MinValueValidator(0)], help_text=help_text, **options
    )


def host_currency() -> str:
    """Of a new price."""
    return str(settings.CURRENCY)


class _Audited(models.Model):
    """A row that people set, and whose changes the audit log is told of."""

    class Meta:
        abstract = True

    def values(self) -> dict[str, Any]:
        """What people set of it."""
        return model_to_dict(self)

    def store(self) -> None:
        """Save it, and tell the audit log what has changed."""
        word = self._meta.model_name.removeprefix("model")  # type: ignore[union-attr]  # a model has one
        with transaction.atomic():
            rows = type(self)._default_manager.select_for_update()
            stored = rows.filter(pk=self.pk).first() if self.pk else None
            was = stored.values() if stored else {}
            self.save()
            became = self.values()
            differ = [name for name in became if was.get(name) != became[name] or not stored]
            if differ:
                audit.record(
                    f"{word}.changed" if stored else f"{word}.made",
                    about=self,
                    before={name: was[name] for name in differ} if stored else None,
                    after={name: became[name] for name in differ},
                )

    def remove(self) -> None:
        """Delete it, and tell the audit log what it was."""
        word = self._meta.model_name.removeprefix("model")  # type: ignore[union-attr]  # as above
        with transaction.atomic():
            audit.record(f"{word}.deleted", about=self, before=self.values())
            self.delete()


class ModelPrice(_Audited):
    """What a model costs from some day on. Whoever runs the host checks it against the provider's own list."""

    model = models.CharField(
        max_length=128,
        help_text="The model's name, as it is asked for. It is also the price of its dated versions, such as"
        " gpt-4.1-2025-04-14 or mistral-large-latest, unless those have one of their own. mock: the scripted model.",
    )
    prompt = _price("For a million tokens of prompts.")
    cached_prompt = _price(
        "For a million of those tokens that the provider had cached. Empty: as others.", null=True, blank=True
    )
    written_prompt = _price(
        "For a million of those tokens that the provider puts into its cache, where it asks for that, as Anthropic"
        " does. Empty: as others.",
        null=True,
        blank=True,
    )
    completion = _price("For a million tokens of answers, thinking aloud among them.")
    currency = models.CharField(max_length=3, default=host_currency, help_text="Always CURRENCY.")
    valid_from = models.DateTimeField(
        default=timezone.now,
        help_text="The price applies from this time until the next price of the model.",
    )

    class Meta:
        verbose_name = "model price"
        ordering = ["model", "-valid_from"]
        constraints = [models.UniqueConstraint(fields=["model", "valid_from"], name="one_price_a_model_and_time")]

    def __str__(self) -> str:
        return self.model

    def clean(self) -> None:
        """A host reckons in one currency."""
        if self.currency != settings.CURRENCY:
            raise ValidationError({"currency": f"This host reckons in {settings.CURRENCY}, which CURRENCY says."})


class Whose(models.TextChoices):
    """Whose model calls a budget is for."""

    HOST = "host", "the whole host"
    AGENT = "agent", "an agent"
    OWNER = "owner", "an owner"
    KEY = "key", "an API key"


class Measure(models.TextChoices):
    """What a budget counts."""

    MONEY = "money"
    TOKENS = "tokens"


class Budget(_Audited):
    """How much model calls may use in a day or a month. Of all that apply to a call, each must have room for it."""

    name = models.CharField(max_length=100, help_text="What it is for.")
    whose = models.CharField(max_length=5, choices=Whose.choices, help_text="The model calls it counts.")
    agent = models.ForeignKey(
        "agent.Agent",
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="budgets",
        help_text="For a budget of an agent.",
    )
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="+",
        help_text="For a budget of an owner: the owner of the conversations.",
    )
    api_key = models.ForeignKey(
        ApiKey,
        verbose_name="API key",
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="+",
        help_text="For a budget of an API key. Summaries are made without a key and are not counted.",
    )
    measure = models.CharField(max_length=6, choices=Measure.choices, help_text="What it counts.")
    every = models.CharField(
        max_length=5, choices=Every.choices, help_text="How often it starts again, at midnight in TIME_ZONE."
    )
    amount = models.BigIntegerField(
        validators=[MinValueValidator(0)], help_text="The limit: tokens, or millionths of the currency."
    )
    is_on = models.BooleanField(default=True, help_text="Whether it is in force.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name", "id"]

    def __str__(self) -> str:
        return self.name

    @property
    def subject_id(self) -> int | None:
        """Whose it is, by id; None for the whole host's."""
        return {Whose.AGENT: self.agent_id, Whose.OWNER: self.owner_id, Whose.KEY: self.api_key_id}.get(
            Whose(self.whose)
        )

    def clean(self) -> None:
        """It is somebody's: of the kind that is named, and of no other."""
        named = {Whose.AGENT: self.agent_id, Whose.OWNER: self.owner_id, Whose.KEY: self.api_key_id}
        fields = {Whose.AGENT: "agent", Whose.OWNER: "owner", Whose.KEY: "api_key"}
        for kind, subject in named.items():
            if kind == self.whose and subject is None:
                raise ValidationError({fields[kind]: f"Say which one: the budget is for {kind.label}."})
            if kind != self.whose and subject is not None:
                raise ValidationError({fields[kind]: "Leave this empty: the budget is for others."})

    def period(self, now: datetime) -> Period:
        """The day or month that a moment is in."""
        return period_of(Every(self.every), now, settings.TIME_ZONE)


class BudgetPeriod(models.Model):
    """What was used of a budget in one day or month."""

    budget = models.ForeignKey(
        Budget, on_delete=models.CASCADE, related_name="periods", db_index=False, help_text="The budget."
    )
    start = models.DateField(help_text="Its first day.")
    spent = models.BigIntegerField(default=0, help_text="Used so far: tokens, or millionths of the currency.")
    warned_at = models.DateTimeField(null=True, help_text="When the warning threshold was reached.")
    exceeded_at = models.DateTimeField(null=True, help_text="When a call was first refused because of it.")

    class Meta:
        ordering = ["-start"]
        constraints = [models.UniqueConstraint(fields=["budget", "start"], name="one_period_a_budget_and_day")]

    def __str__(self) -> str:
        return f"{self.budget_id} from {self.start}"


class Reservation(models.Model):
    """What a model call under way may use of a budget at most. After its lease it counts no more: whoever made it died.

    What it is made for stands here by id: a turn, or a compaction.
    """

    call_id = models.UUIDField(help_text="The model call; it has a row for each budget that applies to it.")
    period = models.ForeignKey(
        BudgetPeriod,
        on_delete=models.CASCADE,
        related_name="reservations",
        db_index=False,
        help_text="The budget's period.",
    )
    amount = models.BigIntegerField(help_text="Tokens, or millionths of the currency.")
    work_id = models.UUIDField(help_text="The turn or compaction that makes the call; it makes one call at a time.")
    conversation_id = models.UUIDField(help_text="Its conversation.")
    lease_until = models.DateTimeField(help_text="The reservation expires then.")

    class Meta:
        indexes = [
            models.Index(fields=["period", "lease_until"], name="reservations_of_a_period"),
            models.Index(fields=["call_id"], name="reservations_of_a_call"),
        ]

    def __str__(self) -> str:
        return f"{self.amount} for {self.work_id}"
