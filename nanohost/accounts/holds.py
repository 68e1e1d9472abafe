"""Legal holds: while one is placed on an owner, a conversation or an agent, nothing of theirs is deleted.

Whoever deletes reads the holds in the same transaction, behind a lock that those who place one wait for, and that keeps
those who delete waiting in turn: from the moment a hold is placed on, nothing goes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db import connection, transaction

from nanohost.accounts import audit
from nanohost.accounts.errors import UnderLegalHold
from nanohost.accounts.models import LegalHold
from nanohost.lib.clock import Now

Kind = LegalHold.Kind

# A lock of the database's own: those who delete share it, and whoever places a hold has it alone.
_LOCK = 0x6E68_686C  # "nhhl"


@dataclass(frozen=True)
class Holds:
    """The holds that are placed now."""

    holds: Sequence[LegalHold] = ()

    def on(
        self, *, owner_id: int | None = None, agent: str = "", conversation_id: UUID | None = None
    ) -> list[LegalHold]:
        """Those that keep a conversation, or what else belongs to it: by its owner, its agent, or itself."""
        wanted = {Kind.OWNER: owner_id, Kind.AGENT: agent or None, Kind.CONVERSATION: conversation_id}
        return [hold for hold in self.holds if wanted[Kind(hold.kind)] == hold.subject]

    def on_memory(self, *, owner_id: int, agent: str) -> list[LegalHold]:
        """Those that keep what an agent knows of an owner: a hold on a conversation does, too."""
        of_conversations = [
            hold
            for hold in self.holds
            if (hold.kind, hold.owner_id, hold.agent) == (Kind.CONVERSATION, owner_id, agent)
        ]
        return self.on(owner_id=owner_id, agent=agent) + of_conversations

    def owners_and_agents(self) -> tuple[set[int], set[str]]:
        """Whose schedules they keep: those of an owner who is held, also by one conversation, and of an agent."""
        owners = {hold.owner_id for hold in self.holds if hold.owner_id is not None}
        return owners, {hold.agent for hold in self.holds if hold.kind == Kind.AGENT}


def placed() -> Holds:
    """Those that are placed now."""
    return Holds(list(LegalHold.objects.filter(released_at=None).order_by("pk")))


def placed_until_the_end() -> Holds:
    """Those that are placed now, and until the caller's transaction ends: whoever places one waits for it. Raises
    ``TransactionManagementError`` outside of one: the lock would be given back at once."""
    if not connection.in_atomic_block:
        raise transaction.TransactionManagementError("Holds are read in the transaction that deletes.")
    _lock("pg_advisory_xact_lock_shared")
    return placed()


def refuse(held: Sequence[LegalHold]) -> None:
    """Raise :class:`UnderLegalHold`, which names them, if there are any."""
    if held:
        raise UnderLegalHold(f"Nothing of it is deleted: {'; '.join(map(told, held))}.")


def told(hold: LegalHold) -> str:
    """A hold in a few words, without its reason."""
    return f"legal hold {hold.pk} on {hold.what}, placed by {hold.placed_by} on {hold.placed_at:%Y-%m-%d}"


def place(
    *,
    kind: str,
    owner_id: int | None = None,
    agent: str = "",
    conversation_id: UUID | None = None,
    reason: str,
    by: str,
) -> LegalHold:
    """Place a hold. One on a conversation says whose it is and with which agent, too."""
    with transaction.atomic():
        _lock("pg_advisory_xact_lock")
        hold = LegalHold.objects.create(
            kind=kind,
            owner_id=owner_id,
            agent=agent,
            conversation_id=conversation_id,
            reason=reason,
            placed_by=by[:200],
        )
        hold.refresh_from_db()
        audit.record("hold.placed", about=hold, name=hold.what, after=_said(hold), reason=reason)
    return hold


def release(hold: LegalHold, *, reason: str, by: str) -> bool:
    """Release a hold; False if it was released before. Its row stays."""
    with transaction.atomic():
        still = LegalHold.objects.filter(pk=hold.pk, released_at=None)
        released = still.update(released_at=Now(), released_by=by[:200], released_because=reason)
        if released:
            audit.record("hold.released", about=hold, name=hold.what, before=_said(hold), reason=reason)
    return bool(released)


def _said(hold: LegalHold) -> dict[str, object]:
    return {"kind": str(hold.kind), "subject": str(hold.subject)}


def _lock(function: str) -> None:
    """On SQLite, where one writes at a time, there is nothing to lock."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {function}(%s)", [_LOCK])
