"""``GET /usage``: what was used and what it has cost, for programs."""

from datetime import date, timedelta
from typing import Any, ClassVar

from django.conf import settings
from django.http import HttpResponse
from django.urls import path
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from agent.models import Agent
from agent.spending.money import as_money
from nanohost.accounts.authentication import key_of
from nanohost.accounts.models import EVERY_AGENT, ApiKey, Scope
from nanohost.console import figures, uses
from nanohost.console.uses import GROUPS, MAX_DAYS, Report, Sums
from nanohost.lib.api import owner_of, problems
from nanohost.lib.errors import InvalidRequest

# The specification's names.
# ruff: noqa: N815

# Unless a range is named.
USUAL_DAYS = 30

FORMATS = ("json", "csv")


class SumsView(serializers.Serializer[Any]):
    turns = serializers.IntegerField()
    calls = serializers.IntegerField(help_text="Answers of models; those of summaries and replays as well.")
    promptTokens = serializers.IntegerField()
    cachedTokens = serializers.IntegerField(help_text="Prompt tokens that the provider had cached.")
    completionTokens = serializers.IntegerField()
    cost = serializers.DecimalField(
        max_digits=30, decimal_places=6, allow_null=True, help_text="As far as it is known; null: not known."
    )
    unpricedCalls = serializers.IntegerField(help_text="Calls whose cost is not known.")


class UsageLine(SumsView):
    name = serializers.CharField(
        allow_null=True,
        help_text="Of the model, agent, key, owner, day or kind of work; null: requested without a key.",
    )


class UsageReport(serializers.Serializer[Any]):
    groupBy = serializers.ChoiceField(list(GROUPS))
    to = serializers.DateField()
    currency = serializers.CharField()
    results = UsageLine(many=True)
    total = SumsView(help_text="Of all results, including those that are left out.")
    more = serializers.IntegerField(help_text="How many are left out, beyond 1,000: those that cost least.")

    def get_fields(self) -> dict[str, Any]:
        """With the one that Python has another use for."""
        return {**super().get_fields(), "from": serializers.DateField()}


def _query(name: str, description: str, schema: dict[str, Any]) -> OpenApiParameter:
    return OpenApiParameter(name, schema, description=description)


class Usage(APIView):
    """What was used."""

    scopes: ClassVar = {"GET": (Scope.READ, Scope.ADMIN)}

    @extend_schema(
        operation_id="getUsage",
        parameters=[
            _query(
                "group_by", "How the usage is grouped.", {"type": "string", "enum": list(GROUPS), "default": "model"}
            ),
            _query(
                "from",
                "The first day, in TIME_ZONE; 30 days up to today if missing.",
                {"type": "string", "format": "date"},
            ),
            _query("to", f"The last day; {MAX_DAYS} days at most.", {"type": "string", "format": "date"}),
            _query("format", "How it is answered.", {"type": "string", "enum": list(FORMATS), "default": "json"}),
        ],
        responses={(200, "application/json"): UsageReport, (200, "text/csv"): str, **problems()},
    )
    def get(self, request: Request) -> HttpResponse:
        """Tokens and costs, by model, agent, key, owner, day or kind of work: the owner's own; with the scope `admin`,
        everybody's. Each is counted on the day on which its turn was asked for, and at most a minute late."""
        group_by = _choice(request, "group_by", tuple(GROUPS))
        kind = _choice(request, "format", FORMATS, usual="json")
        last = _day(request, "to", timezone.localdate())
        first = _day(request, "from", last - timedelta(days=USUAL_DAYS - 1))
        if not timedelta() <= last - first < timedelta(days=MAX_DAYS):
            raise InvalidRequest(f"from is no later than to, and by less than {MAX_DAYS} days before it.")
        figures.look()
        found = uses.report(group_by=group_by, first=first, last=last, **_seen_by(key_of(request), owner_of(request)))
        if kind == "csv":
            headers = {"Content-Disposition": f'attachment; filename="usage-{first}-{last}.csv"'}
            return HttpResponse(uses.export(found), content_type="text/csv; charset=utf-8", headers=headers)
        return Response(_as_json(found))


def _choice(request: Request, name: str, choices: tuple[str, ...], *, usual: str = "") -> str:
    said = request.query_params.get(name, usual or choices[0])
    if said not in choices:
        raise InvalidRequest(f"{name} is one of {', '.join(choices)}.")
    return said


def _day(request: Request, name: str, usual: date) -> date:
    said = request.query_params.get(name)
    if said is None:
        return usual
    try:
        found = date.fromisoformat(said)
        found - timedelta(days=MAX_DAYS)  # or there would be no day so long before
    except (ValueError, OverflowError):
        raise InvalidRequest(f"{name} is a day, such as 2026-03-04.") from None
    return found


def _seen_by(key: ApiKey, owner_id: int) -> dict[str, Any]:
    """Whose use a key may see."""
    if Scope.ADMIN in key.scopes:
        return {}
    if EVERY_AGENT in key.agent_names:
        return {"owner_id": owner_id}
    public = Agent.objects.filter(is_public=True).values_list("name", flat=True)
    return {"owner_id": owner_id, "agents": key.agent_names or list(public)}


def _as_json(report: Report) -> dict[str, Any]:
    return {
        "groupBy": report.group_by,
        "from": report.first.isoformat(),
        "to": report.last.isoformat(),
        "currency": settings.CURRENCY,
        "results": [{"name": line.name or None, **_sums_as_json(line.sums)} for line in report.lines],
        "total": _sums_as_json(report.total),
        "more": report.more,
    }


def _sums_as_json(sums: Sums) -> dict[str, Any]:
    return {
        "turns": sums.turns,
        "calls": sums.calls,
        "promptTokens": sums.prompt_tokens,
        "cachedTokens": sums.cached_tokens,
        "completionTokens": sums.completion_tokens,
        "cost": as_money(sums.cost),
        "unpricedCalls": sums.unpriced_calls,
    }


urlpatterns = [path("usage", Usage.as_view())]
