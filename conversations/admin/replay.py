"""Replays, in the admin: each beside the turn that it repeats."""

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from django import forms
from django.conf import settings
from django.contrib import admin
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404
from django.urls import path, reverse
from django.utils.html import format_html
from django.utils.timezone import localtime
from unfold.widgets import UnfoldAdminTextareaWidget

from agent.spending.money import told_money
from conversations.access import READERS
from conversations.admin import replaying
from conversations.admin.pages import check_readers
from conversations.engine.replaying import frozen, grading, replay_sets
from conversations.errors import CannotReplay
from conversations.models import Replay, ReplayRun, ReplaySet
from nanohost.accounts import audit
from nanohost.lib import clock
from nanohost.lib.admin import (
    REPLAY,
    GrowingAdmin,
    ModelAdmin,
    diff,
    excerpt,
    link_to,
    link_to_list,
    shown,
    table,
)
from nanohost.lib.redaction import redact_known

# Characters of a text that is shown beside another.
MAX_CHARS = 20_000


def beside(original: Mapping[str, Any], again: Mapping[str, Any]) -> str:
    """Two answers side by side: words, what differs in them, tool calls, tokens, cost and time."""
    sides = (original, again)
    rows = [
        ("model", *(shown(excerpt(each["model"], 128)) for each in sides)),
        ("words", *(format_html("<pre>{}</pre>", shown(each["words"][:MAX_CHARS])) for each in sides)),
        ("tool calls", *(_calls(each) for each in sides)),
        ("tokens", *(f"{each['promptTokens']:,} + {each['completionTokens']:,}" for each in sides)),
        ("cost", *(told_money(each["cost"], settings.CURRENCY) for each in sides)),
        ("model time", *(f"{each['ms']:,} ms" for each in sides)),
    ]
    differs = "" if original["words"] == again["words"] else diff(*(each["words"][:MAX_CHARS] for each in sides))
    return format_html("{}{}", table(("", "original", "replay"), rows), differs)


def _calls(side: Mapping[str, Any]) -> str:
    cells = (
        (
            shown(excerpt(each["name"], 128)),
            shown(excerpt(each["arguments"], 200)),
            shown(excerpt(each["answer"], 200)),
            shown(each.get("source", "")),
        )
        for each in side["calls"][:200]
    )
    return table(("tool", "arguments", "answer", "from"), cells) or "none"


@admin.register(Replay)
class ReplayAdmin(GrowingAdmin):
    """Turns that were asked again without any effect, each beside its original."""

    nothing_yet = "Choose turns in the list of turns, and replay them on another model or version of their agent."
    list_display = ["created_at", "status", "turn", "agent", "model", "asked_by", "error_code", "ended_at"]
    list_filter = ["created_at", "status"]
    list_prefetch_related = ["turn", "agent"]
    search_fields = ["id", "turn__id"]
    search_help_text = "An id (or its beginning) of a replay or turn."
    readonly_fields = ["its_turn", "its_changes", "side_by_side", "doubts", "paid", "graded"]
    fieldsets = [
        (None, {"fields": ["id", "its_turn", "agent", "owner", "run", "asked_by", "its_changes", "status"]}),
        ("Result", {"fields": ["graded", "side_by_side", "doubts", "error_code", "error_detail"]}),
        (
            "Usage",
            {"fields": ["model", "prompt_tokens", "completion_tokens", "cached_tokens", "model_calls", "paid"]},
        ),
        (
            "Internals",
            {
                "classes": ["collapse"],
                "fields": ["failures", "worker", "fence", "lease_until", "run_after", "notified_at"],
            },
        ),
        ("Time", {"fields": ["created_at", "ended_at"]}),
    ]

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Whoever may not read conversations is shown no words of them."""
        if request.user.has_perms(READERS):
            return super().get_fieldsets(request, obj)
        hidden = ("Result", {"fields": ["error_code", "error_detail"]})
        return [hidden if title == "Result" else (title, fields) for title, fields in self.fieldsets]

    @admin.display(description="turn")
    def its_turn(self, replay: Replay) -> str:
        return link_to("conversations_turn", replay.turn_id, str(replay.turn)) if replay.turn else "–"

    @admin.display(description="changes")
    def its_changes(self, replay: Replay) -> str:
        return shown(json.dumps(replay.changes, ensure_ascii=False)) if replay.changes else "none"

    @admin.display(description="side by side")
    def side_by_side(self, replay: Replay) -> str:
        if replay.result is None or replay.turn is None:
            return "–"
        original = frozen.original_of(replay.turn) | {"model": replay.turn.model}
        return beside(original, replay.result | {"model": replay.model})

    @admin.display(description="doubts")
    def doubts(self, replay: Replay) -> str:
        """Why it may not be what the turn was asked."""
        return shown("; ".join((replay.result or {}).get("doubts", ()))) or "–"

    @admin.display(description="cost")
    def paid(self, replay: Replay) -> str:
        return told_money(replay.cost, settings.CURRENCY)

    @admin.display(description="grades")
    def graded(self, replay: Replay) -> str:
        grades = replay.grades or []
        cells = ((each["kind"], "passed" if each["passed"] else "failed", shown(each["why"])) for each in grades)
        return table(("grader", "verdict", "why"), cells) or "–"


class ReplaySetForm(forms.ModelForm):  # type: ignore[type-arg]  # Django's own is not subscriptable
    """A set, and cases that are put into it."""

    lines = forms.CharField(
        label="more cases",
        required=False,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 5}),
        help_text='JSON lines: {"turn": id, "expected": text, "contain": [text]}; the last two may be missing.',
    )

    class Meta:
        model = ReplaySet
        fields = ["name", "graders", "max_tokens", "min_passed", "agent", "on_change", "every_hours"]

    def clean_graders(self) -> Any:
        """Graders that make sense."""
        given = self.cleaned_data["graders"] or []
        try:
            grading.check_graders(given)
        except CannotReplay as error:
            raise ValidationError(str(error)) from None
        return given

    def clean(self) -> Any:
        """What is run for an agent says for which."""
        given: dict[str, Any] = super().clean() or self.cleaned_data
        if given.get("on_change") and not given.get("agent"):
            self.add_error("agent", "Choose the agent whose changes it is run for.")
        return given

    def clean_lines(self) -> list[replay_sets.Case]:
        """The cases that they are."""
        try:
            cases = replay_sets.read(self.cleaned_data["lines"])
        except CannotReplay as error:
            raise ValidationError(str(error)) from None
        kept = 0 if self.instance.pk is None else self.instance.cases.count()
        if kept + len(cases) > grading.MAX_CASES:
            raise ValidationError(f"A set has {grading.MAX_CASES} cases at most.")
        if open_turns := [turn for turn, _ in cases if not turn.ended]:
            raise ValidationError(f"The turn {open_turns[0].pk} has not ended; it makes a case once it has.")
        return cases


@admin.register(ReplaySet)
class ReplaySetAdmin(ModelAdmin):
    """Turns that are replayed together, again and again."""

    nothing_yet = "Choose turns in the list of turns, and add them to a set; or add a set with cases as JSON lines."
    form = ReplaySetForm
    list_per_page = 50
    list_display = ["name", "agent", "on_change", "next_at", "created_at", "its_runs"]
    list_select_related = ["agent"]
    search_fields = ["name"]
    readonly_fields = ["its_cases", "its_runs", "next_at", "created_at"]
    actions = ["replay_sets"]

    def get_fields(self, request: HttpRequest, obj: ReplaySet | None = None) -> Any:
        own = ["name", "graders", "max_tokens", "min_passed", "agent", "on_change", "every_hours"]
        if obj is None:
            return [*own, "lines"]
        lines = ["lines"] if self.has_change_permission(request, obj) else []
        cases = ["its_cases"] if request.user.has_perms(READERS) else []
        return [*own, *lines, *cases, "its_runs", "next_at", "created_at"]

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        if "every_hours" in form.changed_data:
            obj.next_at = obj.every_hours and clock.read() + timedelta(hours=obj.every_hours)
        if "agent" in form.changed_data:
            obj.seen_version = None
        super().save_model(request, obj, form, change)
        replay_sets.add(obj, form.cleaned_data["lines"])

    @admin.display(description="cases")
    def its_cases(self, of_set: ReplaySet) -> str:
        cases = list(of_set.cases.order_by("pk").values_list("turn_id", "expected")[:MAX_COMPARED])
        rows = [
            (
                link_to("conversations_turn", turn_id, str(turn_id)),
                shown(excerpt(json.dumps(expected, ensure_ascii=False), 200)) if expected else "as it was",
            )
            for turn_id, expected in cases
        ]
        return format_html("{} cases{}", of_set.cases.count(), table(("turn", "expected"), rows))

    @admin.display(description="runs")
    def its_runs(self, of_set: ReplaySet) -> str:
        return link_to_list("conversations_replayrun", "View runs", name=of_set.name)

    @admin.action(description="Replay the selected set", permissions=[REPLAY])
    def replay_sets(self, request: HttpRequest, queryset: QuerySet[ReplaySet]) -> HttpResponse:
        check_readers(request)  # it shows what was said
        return replaying.ask_or_start(request, queryset, page=request.get_full_path())


@admin.register(ReplayRun)
class ReplayRunAdmin(GrowingAdmin):
    """Turns that were replayed together: what came of them, and what is better and worse than the run before."""

    nothing_yet = "Replay a set of cases, or use manage.py evaluate: each run appears here, with what came of it."
    list_display = ["created_at", "name", "asked_by", "ended_at"]
    list_filter = ["created_at"]
    search_fields = ["id", "name"]
    search_help_text = "An id (or its beginning) of a run; the name of its set."
    fields = [
        "id",
        "name",
        "asked_by",
        "created_at",
        "its_changes",
        "its_graders",
        "max_tokens",
        "outcome",
        "compared",
        "over_time",
        "all_replays",
        "as_a_file",
        "ended_at",
    ]
    readonly_fields = ["its_changes", "its_graders", "outcome", "compared", "over_time", "all_replays", "as_a_file"]

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Whoever may not read conversations is shown no words of them."""
        words = ("compared", "as_a_file")
        return [name for name in self.fields if name not in words or request.user.has_perms(READERS)]

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.export_view)
        return [path("<uuid:pk>/export.jsonl", view, name="conversations_replayrun_export"), *super().get_urls()]

    def export_view(self, request: HttpRequest, pk: UUID) -> StreamingHttpResponse:
        """Each of its replays with its original, as JSON lines."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        check_readers(request)
        run = get_object_or_404(ReplayRun, pk=pk)
        audit.record("evaluation.exported", about=run, after={"cases": run.replays.count()})
        lines = (redact_known(json.dumps(line, ensure_ascii=False)) for line in grading.lines(run))
        headers = {"Content-Disposition": f'attachment; filename="evaluation-{pk}.jsonl"', "Cache-Control": "no-store"}
        return StreamingHttpResponse((f"{line}\n" for line in lines), content_type="application/jsonl", headers=headers)

    @admin.display(description="changes")
    def its_changes(self, run: ReplayRun) -> str:
        return shown(json.dumps(run.changes, ensure_ascii=False)) if run.changes else "none"

    @admin.display(description="graders")
    def its_graders(self, run: ReplayRun) -> str:
        return shown(json.dumps(run.graders, ensure_ascii=False)) if run.graders else "none"

    @admin.display(description="outcome")
    def outcome(self, run: ReplayRun) -> str:
        told = grading.told(run)
        counts = [(name, f"{told[key]:,}") for name, key in _COUNTS.items()]
        sums = [
            (f"{name}, {side}", f"{told[side][key]:,}")
            for name, key in (("prompt tokens", "promptTokens"), ("answer tokens", "completionTokens"), ("ms", "ms"))
            for side in ("original", "replay")
        ]
        costs = [
            (f"cost, {side}", told_money(told[side]["cost"], settings.CURRENCY)) for side in ("original", "replay")
        ]
        return table(("", ""), [*counts, *sums, *costs])

    @admin.display(description="compared with the run before")
    def compared(self, run: ReplayRun) -> str:
        """What is worse and what is better, each turn beside what it was answered in that run."""
        told = grading.told(run)
        if not told["before"]:
            return "It is the first of its name."
        turns = [(word, turn) for word in ("worse", "better") for turn in told[word][:MAX_COMPARED]]
        both = Replay.objects.filter(run__in=[run.pk, told["before"]], turn__in=[turn for _, turn in turns])
        found = {(str(row.run_id), str(row.turn_id)): row for row in both}
        rows = [
            (
                word,
                link_to("conversations_turn", turn, turn),
                _answer(found.get((told["before"], turn))),
                _answer(found.get((str(run.pk), turn))),
            )
            for word, turn in turns
        ]
        before = link_to("conversations_replayrun", told["before"], "The run before")
        counts = f"{len(told['better'])} better, {len(told['worse'])} worse"
        return format_html("{}: {}{}", before, counts, table(("", "turn", "before", "now"), rows))

    @admin.display(description="over time")
    def over_time(self, run: ReplayRun) -> str:
        """The latest runs of that name."""
        alike = ReplayRun.objects.filter(name=run.name).order_by("-pk")[:MAX_OVER_TIME]
        rows = [
            (
                link_to("conversations_replayrun", each.pk, f"{localtime(each.created_at):%Y-%m-%d %H:%M}"),
                shown(excerpt(str(each.changes.get("model", "as it was")), 128)),
                *_figures(each.report),
            )
            for each in alike
        ]
        return table(("run", "model", "passed", "better", "worse", "tokens", "cost"), rows)

    @admin.display(description="replays")
    def all_replays(self, run: ReplayRun) -> str:
        return link_to_list("conversations_replay", "Its replays, each beside its original", run=run.pk)

    @admin.display(description="export")
    def as_a_file(self, run: ReplayRun) -> str:
        address = reverse("admin:conversations_replayrun_export", args=[run.pk])
        return format_html('<a href="{}">As JSON lines, each replay with its original</a>', address)


def _answer(row: Replay | None) -> str:
    """A replay in a comparison: what it was answered, and why it did not pass."""
    if row is None:
        return "not kept"
    wrong = [each["why"] for each in row.grades or () if not each["passed"]] or [row.error_code]
    said = link_to("conversations_replay", row.pk, excerpt(row.words(), 200) or row.status)
    return said if grading.passed(row) else format_html("{}<br>{}", said, shown(excerpt(wrong[0], 200)))


def _figures(report: dict[str, Any] | None) -> tuple[str, ...]:
    """Of a run, beside others."""
    if report is None:
        return ("not ended", "", "", "", "")
    again = report["replay"]
    return (
        f"{report['passed']:,} of {report['cases']:,}",
        f"{len(report['better']):,}",
        f"{len(report['worse']):,}",
        f"{again['promptTokens'] + again['completionTokens']:,}",
        told_money(again["cost"], settings.CURRENCY),
    )


# Turns that are named in a comparison; and runs that stand beside each other.
MAX_COMPARED, MAX_OVER_TIME = 100, 20
_COUNTS = {
    "turns": "cases",
    "not ended": "open",
    "failed": "failed",
    "passed every grader": "passed",
    "with the same words": "sameWords",
}
