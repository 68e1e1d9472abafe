"""The tools by which an agent keeps schedules. They run inline, for the owner and the agent that call.

What they raise undoes what they did: a call's outcome is stored in the same transaction, or nothing is.
"""

from typing import Any, Literal
from uuid import UUID

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db.models import Q

from agent.models import Agent
from conversations.models import Turn
from memory import documents
from scheduler import series, times
from scheduler.models import Schedule, ScheduleQuerySet
from scheduler.runs import is_scheduled
from tools.registry import Caller, Untrusted, tool

# Of one schedule's next times, and of the schedules in a list.
TIMES_SHOWN, MAX_LISTED = 3, 50

_UNKNOWN = "There is no schedule with that id, or it is not yours. The action list shows those there are."


@tool(effects="rows", writes_to="deliver_to")
def schedule(
    caller: Caller,
    action: Literal["create", "list", "update", "pause", "resume", "cancel"],
    id: str = "",
    prompt: str | None = None,
    description: str | None = None,
    at: str | None = None,
    every_seconds: int | None = None,
    cron: str | None = None,
    zone: str | None = None,
    ends_at: str | None = None,
    max_runs: int | None = None,
    new_conversation: bool = False,
    deliver_to: str | None = None,
) -> str:
    """Have a prompt said to you later, once or again and again: reminders, and whatever the user wants done at a time.

    To create one, give a prompt and one of at, every_seconds and cron; it is said in this conversation, as if the user
    said it then. An update changes what you give and leaves the rest.

    Args:
        action: What to do.
        id: Which schedule, for update, pause, resume and cancel; list shows the ids.
        prompt: What is said to you then. It must make sense by itself, such as "Remind the user to call Anna."
        description: What it is for, in a few words for people.
        at: Once: ISO 8601, such as 2030-12-31T09:00, by the clock of the zone unless it names an offset.
        every_seconds: Again and again, after so many seconds.
        cron: Five fields: minute, hour, day of the month, month, day of the week, such as "0 8 * * MON-FRI".
        zone: Whose clock is meant, such as Europe/Berlin. Without one, the clock by which messages here are dated.
        ends_at: It does not run after that; written as at. An empty text: without an end.
        max_runs: It ends when it has run so often. 0: without an end.
        new_conversation: Say it in a new conversation each time, and not in this one.
        deliver_to: Where your answer goes as well: a destination you were given, by its name. origin: nowhere else.
    """
    if is_scheduled(caller.turn_id) and not _may_go_on(caller):
        raise ValueError(
            "A turn that was begun by the clock may not use schedules, unless an administrator allows it to this agent."
        )
    given = {
        "prompt": prompt,
        "description": description,
        "at": at,
        "every_seconds": every_seconds,
        "cron": cron,
        "zone": zone,
        "ends_at": ends_at,
        "max_runs": max_runs,
    }
    wishes: Any = {name: value for name, value in given.items() if value is not None}
    if deliver_to:
        wishes["deliver_to"] = {"destination": deliver_to}
    if max_runs == 0:
        wishes["max_runs"] = None
    if action == "list":
        return _listed(caller)
    # Calls of one round run side by side: they are counted one after the other.
    get_user_model().objects.select_for_update(no_key=True).get(pk=caller.owner_id)
    if action == "create":
        made = series.create(
            owner_id=caller.owner_id,
            agent=caller.agent,
            conversation_id=None if new_conversation else caller.conversation_id,
            tainted_by=documents.learnt_in(caller.conversation_id, caller.tainted_by),
            api_key_id=Turn.objects.filter(pk=caller.turn_id).values_list("api_key_id", flat=True).first(),
            **wishes,
        )
        _check_frequency(made)
        _check_count(caller)
        return _marked(f"Created. {_told(made)}", made)
    kept = _named(caller, id)
    if action == "update":
        if not wishes:
            raise ValueError("Say what is to change: prompt, description, at, every_seconds, cron, zone, deliver_to, …")
        where = documents.learnt_in(caller.conversation_id, caller.tainted_by)
        changed = series.update(kept, tainted_by=where, **wishes)
        goes_on_again = kept.state == "ended" and changed.state != "ended"
        if goes_on_again or {"at", "every_seconds", "cron"} & wishes.keys():
            _check_frequency(changed)
        if goes_on_again:
            _check_count(caller)
        return _marked(f"Changed. {_told(changed)}", changed)
    if action == "pause":
        return _marked(f"Paused. {_told(series.pause(kept, because='Paused by its agent.'))}", kept)
    if action == "resume":
        if kept.paused_because == series.BY_OPERATOR:
            raise ValueError("An operator has paused this schedule. Only people can resume it; tell the user so.")
        return _marked(f"Resumed. {_told(series.resume(kept))}", kept)
    series.cancel(kept)
    return f"Cancelled for good: {kept.pk}."


@tool(effects="rows")
def cron(
    caller: Caller,
    action: Literal["add", "list", "remove"],
    message: str = "",
    every_seconds: int | None = None,
    cron_expr: str | None = None,
    tz: str | None = None,
    at: str | None = None,
    job_id: str = "",
) -> str:
    """Have a message said to you later, once or again and again: reminders and recurring tasks.

    To add one, give a message and one of at, every_seconds and cron_expr; it is said in this conversation, as if the
    user said it then.

    Args:
        action: What to do.
        message: What is said to you then. It must make sense by itself, such as "Remind the user to call Anna."
        every_seconds: Again and again, after so many seconds.
        cron_expr: Five fields: minute, hour, day of the month, month, day of the week, such as "0 8 * * MON-FRI".
        tz: Whose clock is meant, such as Europe/Berlin. Without one, the clock by which messages here are dated.
        at: Once: ISO 8601, such as 2030-12-31T09:00, by the clock of tz unless it names an offset.
        job_id: Which one to remove; list shows the ids.
    """
    if action == "list":
        return schedule(caller, "list")
    if action == "remove":
        if not job_id.strip():
            raise ValueError("Name what to remove by its job_id; the action list shows the ids.")
        return schedule(caller, "cancel", id=job_id)
    if not message.strip():
        raise ValueError("Give a message: what is said to you then.")
    # Models fill in what they do not mean with empty texts and zeros.
    times_given = {"at": at or None, "every_seconds": every_seconds or None, "cron": cron_expr or None}
    if len([each for each in times_given.values() if each is not None]) != 1:
        raise ValueError("Give exactly one of at, every_seconds and cron_expr.")
    given: Any = times_given
    return schedule(caller, "create", prompt=message, zone=tz or None, **given)


def _may_go_on(caller: Caller) -> bool:
    return Agent.objects.filter(name=caller.agent, may_reschedule=True).exists()


def _own(caller: Caller) -> ScheduleQuerySet:
    """What the caller may know of: all that its owner and its agent have together, whoever made it."""
    return Schedule.objects.kept().filter(owner=caller.owner_id, agent__name=caller.agent)


def _not_ended(caller: Caller) -> ScheduleQuerySet:
    return _own(caller).filter(Q(active=True) | Q(next_at__isnull=False))


def _named(caller: Caller, name: str) -> Schedule:
    if not name.strip():
        raise ValueError("Name the schedule by its id; the action list shows them.")
    try:
        found = _own(caller).filter(pk=UUID(name.strip())).first()
    except ValueError:
        found = None
    if found is None:
        raise ValueError(_UNKNOWN)
    return found


def _check_frequency(row: Schedule) -> None:
    """Raises a ValueError, which undoes the change, if it comes too often."""
    least = settings.SCHEDULE_TOOL_LEAST_SECONDS
    if times.shortest_gap(row.timing).total_seconds() < least:
        raise ValueError(
            f"You may run a schedule every {least:g} seconds at the most often. Choose times further apart."
        )


def _check_count(caller: Caller) -> None:
    """Raises a ValueError, which undoes the change, if it is one too many."""
    most = settings.SCHEDULE_TOOL_MOST
    if _not_ended(caller)[: most + 1].count() > most:
        raise ValueError(
            f"You may have {most} schedules that have not ended. Cancel one that is no longer needed first."
        )


def _listed(caller: Caller) -> str:
    found = list(_not_ended(caller).order_by("-created_at")[: MAX_LISTED + 1])
    lines = [_told(each) for each in found[:MAX_LISTED]]
    if len(found) > MAX_LISTED:
        lines.append(f"And older ones: these are the newest {MAX_LISTED}.")
    return _marked("\n".join(lines) or "There are no schedules.", *found[:MAX_LISTED])


def _marked(text: str, *schedules: Schedule) -> str:
    """What is told of schedules; it is untrusted if the texts of one are."""
    marked = next((each.tainted_by for each in schedules if each.tainted_by), "")
    return Untrusted(text, by=f"a schedule, made in {marked}") if marked else text


def _told(schedule: Schedule) -> str:
    """A schedule in one line: its id, what it is, and when it runs next."""
    try:
        zone = times.zone_of(schedule.zone)
        coming = series.upcoming(schedule)[: TIMES_SHOWN + 1]
    except times.BadTiming as error:
        return f"{schedule.pk}: {schedule}; {error}"
    shown = [f"{each.at.astimezone(zone):%a %Y-%m-%d %H:%M:%S %z} {each.note}".strip() for each in coming]
    more = ", …" if len(shown) > TIMES_SHOWN else ""
    when = f"{', '.join(shown[:TIMES_SHOWN])}{more} ({schedule.zone})" if shown else "never again"
    if schedule.state == "paused":
        return f"{schedule.pk}: {schedule}; paused: {schedule.paused_because} If resumed, it runs {when}."
    where = f"; its answers go to {schedule.destination} as well" if schedule.destination else ""
    return f"{schedule.pk}: {schedule}; it runs {when}{where}."
