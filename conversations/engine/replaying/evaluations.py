"""Sets of cases that run by themselves: by the clock, and when their agent is changed, before that is live if it says
so.

A job looks after them each minute, and may do so several times at once: each start is a conditional update, or a row
that is unique, in the transaction that makes the run.
"""

import logging
from collections.abc import Iterable
from datetime import timedelta

from django.db import transaction

from agent.models import Agent, AgentVersion, VersionState
from conversations.engine.replaying import replay_sets
from conversations.engine.replaying.frozen import Changes
from conversations.errors import CannotReplay
from conversations.models import ReplayRun, ReplaySet
from nanohost.lib import clock

logger = logging.getLogger(__name__)

# Who asks for runs that nobody has asked for.
BY_ITSELF = "the host"


def look_after() -> int:
    """Start what is due and decide on versions that wait; how many runs were started and versions decided on."""
    return start_by_clock() + start_after_changes() + decide()


def start_by_clock() -> int:
    """Start the sets whose time has come, each once for however many times have passed."""
    now, started = clock.read(), 0
    for of_set in list(ReplaySet.objects.filter(next_at__lte=now).select_related("agent").order_by("next_at")[:100]):
        following = None if of_set.every_hours is None else now + timedelta(hours=of_set.every_hours)
        with transaction.atomic():
            mine = ReplaySet.objects.filter(pk=of_set.pk, next_at=of_set.next_at).update(next_at=following)
            if mine and following:
                started += _started(of_set, _as_it_is(of_set.agent) if of_set.agent else Changes())
    return started


def start_after_changes() -> int:
    """Start the sets whose agent has become another version that is live."""
    started = 0
    for of_set in ReplaySet.objects.filter(on_change=True).exclude(agent=None).select_related("agent").order_by("pk"):
        agent = of_set.agent
        if agent is None or agent.version == of_set.seen_version:
            continue
        with transaction.atomic():
            seen = ReplaySet.objects.filter(pk=of_set.pk, seen_version=of_set.seen_version)
            if seen.update(seen_version=agent.version):
                started += _started(of_set, _as_it_is(agent))
    return started


def decide() -> int:
    """Have the versions that wait evaluated, and make those live that have passed; how many runs and decisions."""
    waiting = AgentVersion.objects.filter(state=VersionState.PENDING).select_related("agent").order_by("pk")
    return sum(map(_decide, list(waiting[:100])))


def _decide(version: AgentVersion) -> int:
    sets = list(ReplaySet.objects.filter(agent=version.agent_id, on_change=True).order_by("pk"))
    if not sets:
        version.refuse("No set of cases is run when this agent is changed: choose it on the page of one.")
        return 1
    changes = Changes(version=version.number, model=Agent.of_profile(version.profile).own_model())
    started = 0
    for of_set in sets:
        try:
            started += _started_for(of_set, version.number, changes)
        except CannotReplay as error:
            version.refuse(str(error))
            return 1
    runs = list(ReplayRun.objects.filter(of_set__in=sets, for_version=version.number).select_related("of_set"))
    if len(runs) < len(sets) or any(run.report is None for run in runs):
        return started
    if wrong := list(_broken(runs)):
        version.refuse(" ".join(wrong))
    elif version.make_live():
        # What it has become is what was evaluated.
        version.agent.refresh_from_db()
        ReplaySet.objects.filter(pk__in=[each.pk for each in sets]).update(seen_version=version.agent.version)
    return started + 1


def _broken(runs: Iterable[ReplayRun]) -> Iterable[str]:
    for run in runs:
        of_set, report = run.of_set, run.report or {}
        if of_set and report["passed"] < of_set.min_passed * report["cases"]:
            passed = f"{report['passed']} of {report['cases']} passed"
            yield f"Of {run.name}, {passed}; {of_set.min_passed:g} of them have to."


def _started_for(of_set: ReplaySet, number: int, changes: Changes) -> bool:
    """Start a set for a version that waits, once."""
    with transaction.atomic():
        ReplaySet.objects.select_for_update().get(pk=of_set.pk)
        if ReplayRun.objects.filter(of_set=of_set, for_version=number).exists():
            return False
        run = replay_sets.start(of_set, changes, by=BY_ITSELF)
        ReplayRun.objects.filter(pk=run.pk).update(for_version=number)
    return True


def _started(of_set: ReplaySet, changes: Changes) -> bool:
    """Start a set; one that cannot be started says so in the log, and has its next time all the same."""
    try:
        with transaction.atomic():
            replay_sets.start(of_set, changes, by=BY_ITSELF)
    except CannotReplay as error:
        logger.warning("the set of cases %s was not started: %s", of_set.pk, error)
        return False
    return True


def _as_it_is(agent: Agent) -> Changes:
    return Changes(version=agent.version, model=agent.own_model())
