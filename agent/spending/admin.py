"""Prices and budgets, in the admin."""

from decimal import Decimal
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html
from unfold.widgets import UnfoldAdminDecimalFieldWidget

from agent.spending import budgets
from agent.spending.models import MICRO, Budget, Measure, ModelPrice
from agent.spending.money import told_money
from nanohost.lib.admin import TOGGLE, ModelAdmin, table
from nanohost.lib.moments import when


class _AuditedAdmin(ModelAdmin):
    """What is saved or deleted here is told to the audit log by the row itself."""

    list_per_page = 50

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        obj.store()

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        obj.remove()

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        for row in queryset:
            row.remove()


@admin.register(ModelPrice)
class ModelPriceAdmin(_AuditedAdmin):
    """A price that changes gets a new row, valid from that day on: what was asked before keeps what it has cost."""

    nothing_yet = "With the prices of your models, usage is shown in money. Add one for each model you pay for."
    list_display = ["model", "prompt", "cached_prompt", "written_prompt", "completion", "currency", "valid_from"]
    search_fields_of_editors = ["model"]
    fields = ["model", "prompt", "cached_prompt", "written_prompt", "completion", "currency", "valid_from"]


class BudgetForm(forms.ModelForm):  # type: ignore[type-arg]  # Django's own is not subscriptable
    """A budget, with its limit as people write it."""

    limit = forms.DecimalField(
        min_value=Decimal(0),
        max_digits=18,
        decimal_places=6,
        widget=UnfoldAdminDecimalFieldWidget(),
        help_text="How much may be used: money in CURRENCY, such as 25.50; or tokens of prompts and answers together.",
    )

    class Meta:
        model = Budget
        fields = ["name", "whose", "agent", "owner", "api_key", "measure", "every", "is_on"]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.instance.pk:
            unit = MICRO if self.instance.measure == Measure.MONEY else 1
            self.initial["limit"] = f"{Decimal(self.instance.amount) / unit:f}"

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        limit = cleaned.get("limit")
        if limit is not None:
            is_money = (cleaned.get("measure") or self.instance.measure) == Measure.MONEY
            if not is_money and limit != int(limit):
                raise ValidationError({"limit": "There are no parts of tokens."})
            self.instance.amount = int(limit * MICRO) if is_money else int(limit)
        return cleaned


@admin.register(Budget)
class BudgetAdmin(_AuditedAdmin):
    """What is used is counted from when the budget was made, and from then on by day or month."""

    nothing_yet = "A budget limits what a day or month may cost, for all, an agent, a person or a key."
    form = BudgetForm
    list_display = ["name", "for_whom", "limit_told", "used", "left", "renewed", "is_on"]
    list_filter = ["whose", "measure", "every", "is_on"]
    list_select_related = ["agent", "owner", "api_key"]
    search_fields_of_editors = ["name"]
    actions = ["switch_on", "switch_off"]
    readonly_fields = ["used", "left", "renewed", "before", "created_at"]

    def get_fieldsets(self, request: HttpRequest, obj: Budget | None = None) -> Any:
        whose = ["name", "whose", "agent", "owner", "api_key"]
        limit = ["limit"] if self.has_change_permission(request, obj) else ["limit_told"]
        made = [(None, {"fields": whose}), ("How much", {"fields": ["measure", "every", *limit, "is_on"]})]
        state = ("Status", {"fields": ["used", "left", "renewed", "before", "created_at"]})
        return [*made, state] if obj else made

    def get_readonly_fields(self, request: HttpRequest, obj: Budget | None = None) -> Any:
        # What was counted would mean something else.
        fixed = ["whose", "agent", "owner", "api_key", "measure", "every"] if obj else []
        return [*self.readonly_fields, "limit_told", *fixed]

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        listed = super().get_changelist_instance(request)
        self._look_up(list(listed.result_list))
        listed.result_list = list(listed.result_list)
        return listed

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Budget | None:
        budget: Budget | None = super().get_object(request, object_id, from_field)
        self._look_up([budget] if budget else [])
        return budget

    def _look_up(self, rows: list[Any]) -> None:
        now = timezone.now()
        standing = budgets.standing(rows, now)
        for row in rows:
            row.stands, row.period_now = standing[row.pk], row.period(now)

    @admin.display(description="for")
    def for_whom(self, budget: Budget) -> str:
        return str(budget.agent or budget.owner or budget.api_key or budget.get_whose_display())

    @admin.display(description="limit")
    def limit_told(self, budget: Budget) -> str:
        return f"{_told(budget, budget.amount)} a {budget.every}"

    @admin.display(description="used")
    def used(self, budget: Any) -> str:
        spent, reserved = budget.stands
        of = f"{_told(budget, spent)} used" + (f", {_told(budget, reserved)} reserved" if reserved else "")
        return format_html(
            '<progress max="{}" value="{}" aria-label="Used of {}"></progress> {}',
            max(budget.amount, 1),
            min(spent + reserved, max(budget.amount, 1)),
            budget.name,
            of,
        )

    @admin.display(description="left")
    def left(self, budget: Any) -> str:
        return _told(budget, max(budget.amount - sum(budget.stands), 0))

    @admin.display(description="resets")
    def renewed(self, budget: Any) -> str:
        return when(budget.period_now.ends)

    @admin.display(description="before")
    def before(self, budget: Budget) -> str:
        rows = budget.periods.filter(start__lt=budget.period(timezone.now()).start).order_by("-start")[:12]
        cells = ((f"{row.start}", _told(budget, row.spent), "yes" if row.exceeded_at else "") for row in rows)
        return table(("from", "used", "has refused"), cells) or "–"

    @admin.action(description="Switch the selected budgets on", permissions=[TOGGLE])
    def switch_on(self, request: HttpRequest, chosen: QuerySet[Budget]) -> None:
        self._switch(request, chosen, is_on=True)

    @admin.action(description="Switch the selected budgets off", permissions=[TOGGLE])
    def switch_off(self, request: HttpRequest, chosen: QuerySet[Budget]) -> None:
        self._switch(request, chosen, is_on=False)

    def _switch(self, request: HttpRequest, chosen: QuerySet[Budget], *, is_on: bool) -> None:
        for budget in chosen:
            budget.is_on = is_on
            budget.store()
        self.message_user(request, f"{len(chosen)} budgets are {'on' if is_on else 'off'}.", messages.SUCCESS)


def _told(budget: Budget, amount: int) -> str:
    """An amount, as people read it."""
    return told_money(amount, settings.CURRENCY) if budget.measure == Measure.MONEY else f"{amount:,} tokens"
