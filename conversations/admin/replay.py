"""Replays, in the admin: each beside the turn that it repeats."""

import json
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html

from agent.spending.money import told_money
from conversations.access import READERS
from conversations.engine.replaying import frozen, grading
from conversations.models import Replay, ReplayRun
from nanohost.lib.admin import GrowingAdmin, diff, excerpt, link_to, link_to_list, shown, table

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


@admin.register(ReplayRun)
class ReplayRunAdmin(GrowingAdmin):
    """Turns that were replayed together: what came of them, and what is better and worse than the run before."""

    nothing_yet = "manage.py evaluate replays a set of turns, and grades the answers; each run appears here."
    list_display = ["created_at", "name", "asked_by"]
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
        "outcome",
        "compared",
        "all_replays",
    ]
    readonly_fields = ["its_changes", "its_graders", "outcome", "compared", "all_replays"]

    @admin.display(description="changes")
    def its_changes(self, run: ReplayRun) -> str:
        return shown(json.dumps(run.changes, ensure_ascii=False)) if run.changes else "none"

    @admin.display(description="graders")
    def its_graders(self, run: ReplayRun) -> str:
        return shown(json.dumps(run.graders, ensure_ascii=False)) if run.graders else "none"

    @admin.display(description="outcome")
    def outcome(self, run: ReplayRun) -> str:
        told = _report_of(run)
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
        told = _report_of(run)
        if not told["before"]:
            return "It is the first of its name."
        rows = [
            (word, link_to_list("conversations_replay", f"turn {turn}", turn=turn))
            for word in ("worse", "better")
            for turn in told[word][:MAX_COMPARED]
        ]
        before = link_to("conversations_replayrun", told["before"], "The run before")
        counts = f"{len(told['better'])} better, {len(told['worse'])} worse"
        return format_html("{}: {}{}", before, counts, table(("", "turn"), rows))

    @admin.display(description="replays")
    def all_replays(self, run: ReplayRun) -> str:
        return link_to_list("conversations_replay", "Its replays, each beside its original", run=run.pk)


# Turns that are named in a comparison.
MAX_COMPARED = 100
_COUNTS = {
    "turns": "cases",
    "not ended": "open",
    "failed": "failed",
    "passed every grader": "passed",
    "with the same words": "sameWords",
}


def _report_of(run: ReplayRun) -> dict[str, Any]:
    """Made once for a page, which asks for its fields several times."""
    if run.report is None:
        run.report = grading.report(run)
    return run.report
