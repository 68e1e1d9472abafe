"""Replays: a stored turn is asked again, on another model or with another version of its agent, without any effect.

A replay is a piece of work like a turn: claimed by a conditional update that raises its fence, kept by a lease, found
by the sweep. What it is asked is a copy of what the turn was asked, built from the turn's own record. Its tool calls
are answered from the record, by name and arguments; what is not on record is refused, or the gate says what it would
do. Nothing here makes a tool call, a message, a delivery or a memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Case, F, IntegerField, When

from agent.llm.base import Completion
from agent.spending import budgets
from agent.spending.bills import Bill
from conversations.engine import doorbell
from conversations.engine.replaying.frozen import Changes, profile_of
from conversations.errors import CannotReplay, FenceLost, RunBudgetSpent
from conversations.kinds import REPLAYS
from conversations.models import Replay, ReplayRun, Turn
from conversations.replay_models import ReplayQuerySet, ReplayStatus
from nanohost.lib.clock import Now
from nanohost.lib.lease import backoff
from nanohost.lib.redaction import redact, redact_head, redact_json

# After so many failures of a provider, or workers that died, in a row, it fails.
MAX_FAILURES = 3
# Seconds before another try, doubled each time.
RETRY_FIRST, RETRY_LONGEST = 5.0, 60.0


def request(
    turn: Turn, changes: Changes, *, by: str, run: ReplayRun | None = None, expected: Mapping[str, Any] | None = None
) -> Replay:
    """Have a turn asked again, once the current transaction has committed. ``by``: who asks for that. ``run``: which it
    is part of. ``expected``: what its case expects. Raises :class:`CannotReplay`."""
    conversation = turn.conversation
    if changes.version is not None:
        profile_of(conversation.agent, changes.version)
    if not turn.ended:
        raise CannotReplay("The turn has not ended; it can be replayed once it has.")
    row = Replay.objects.create(
        turn=turn,
        owner_id=turn.owner_id,
        agent_id=conversation.agent_id,
        asked_by=by,
        run=run,
        expected=expected,
        changes=changes.as_json(),
        model=changes.model or turn.model,
        cost=0,
        notified_at=Now(),
    )
    doorbell.notify(REPLAYS, row.pk)
    return row


# --- taking hold -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Hold:
    """A held replay; the row as it was when it was claimed."""

    row: Replay
    fence: int

    @property
    def id(self) -> UUID:
        """The replay's."""
        return self.row.pk


def claim(replay_id: UUID, *, worker: str) -> Hold | None:
    """Claim a replay; None if it is not claimable. One whose worker died counts that as a failure."""
    with transaction.atomic():
        changed = (
            Replay.objects.due()
            .filter(pk=replay_id)
            .update(
                failures=Case(
                    When(status=ReplayStatus.RUNNING, then=F("failures") + 1),
                    default=F("failures"),
                    output_field=IntegerField(),
                ),
                run_after=None,
                **Replay.claimed(worker=worker, lease=settings.TURN_LEASE_SECONDS),
            )
        )
        if changed != 1:
            return None
        row = Replay.objects.select_related("turn__conversation__agent", "agent", "run").get(pk=replay_id)
    return Hold(row=row, fence=row.fence)


def _held(hold: Hold) -> ReplayQuerySet:
    return Replay.objects.held(hold.id, hold.fence)


def renew(hold: Hold) -> bool:
    """Renew the lease; False if it is no longer ours."""
    return bool(_held(hold).renew())


def release(hold: Hold) -> None:
    """Let go of it at a shutdown: whoever comes next takes it, at no cost."""
    _held(hold).release()


def reschedule(hold: Hold, *, code: str, detail: str, seconds: float | None = None) -> None:
    """Let go of it for a while, after a failure that may pass; or let it fail, after too many."""
    if hold.row.failures + 1 >= MAX_FAILURES:
        fail(hold, code=code, detail=detail)
        return
    wait = max(seconds or 0.0, backoff(hold.row.failures, first=RETRY_FIRST, longest=RETRY_LONGEST))
    _held(hold).reschedule(
        min(wait, RETRY_LONGEST),
        failures=F("failures") + 1,
        error_code=code,
        error_detail=redact_head(detail, 500),
    )


def fail(hold: Hold, *, code: str, detail: str) -> None:
    """It ends without an answer."""
    ended = {"status": ReplayStatus.FAILED, "lease_until": None, "ended_at": Now()}
    _held(hold).update(error_code=code, error_detail=redact_head(detail, 500), **ended)


def check_run(hold: Hold) -> None:
    """Before a model is asked: raises :class:`RunBudgetSpent` if the run has used what it may. Calls under way are not
    counted, so that it may use as much more as they do."""
    run = hold.row.run
    if run and run.max_tokens is not None and run.used_tokens() >= run.max_tokens:
        raise RunBudgetSpent(f"Its run has used the {run.max_tokens:,} tokens that it may use.")


def charge(hold: Hold, completion: Completion, bill: Bill) -> None:
    """Store what an answer has cost, whatever becomes of it and of the replay."""
    used = completion.usage
    with transaction.atomic():
        Replay.objects.filter(pk=hold.id).update(
            prompt_tokens=F("prompt_tokens") + used.prompt_tokens,
            completion_tokens=F("completion_tokens") + used.completion_tokens,
            cached_tokens=F("cached_tokens") + used.cached_tokens,
            cost=None if bill.cost is None else F("cost") + bill.cost,
            model_calls=F("model_calls") + 1,
        )
        budgets.settle(bill)


def finish(hold: Hold, result: Mapping[str, Any], grades: Sequence[Mapping[str, Any]] | None = None) -> None:
    """Store what came of it, and its grades; raises :class:`FenceLost`."""
    ended: dict[str, Any] = {"status": ReplayStatus.SUCCEEDED, "lease_until": None, "ended_at": Now()}
    if _held(hold).update(result=_without_secrets(result), grades=grades, error_code="", error_detail="", **ended) != 1:
        raise FenceLost


def _without_secrets(result: Mapping[str, Any]) -> dict[str, Any]:
    calls = [
        each | {"arguments": redact_json(each["arguments"]), "name": redact(each["name"])} for each in result["calls"]
    ]
    return {**result, "calls": calls}
