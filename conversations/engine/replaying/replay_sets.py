"""Sets of cases: stored turns that are replayed together again and again, so that runs can be compared over time.

Cases come from turns that are chosen, found by the filters of the turn search, or named in JSON lines.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction

from conversations import turn_search
from conversations.engine.replaying import grading
from conversations.engine.replaying.frozen import Changes
from conversations.errors import CannotReplay
from conversations.models import ReplayCase, ReplayRun, ReplaySet, Turn
from conversations.statuses import FINAL

# A turn, and what is expected of its answer: ``words``, and texts that it ``contains``. None: as it was.
Case = tuple[Turn, dict[str, Any] | None]

# Characters of what is expected, of a case.
MAX_EXPECTED = 40_000

_FORM = '{"turn": id, "expected": text, "contain": [text]} is needed'


def found(wanted: Mapping[str, Any], *, limit: int, stretches: int | None = None) -> list[Case]:
    """The newest turns that have ended and match, as :func:`turn_search.find` has it; so many at most. ``stretches``:
    of turns that are looked at for them, for who cannot wait until all are."""
    cases: list[Case] = []
    after: UUID | None = None
    ended = Turn.objects.filter(status__in=FINAL).select_related("conversation__agent")
    looked_at = 0
    while len(cases) < limit and looked_at != stretches:
        looked_at += 1
        page = turn_search.find(ended, wanted, limit=limit - len(cases), after=after)
        cases += [(turn, None) for turn in page.turns]
        if (after := page.after) is None:
            break
    return cases


def read(text: str) -> list[Case]:
    """Cases in JSON lines. Raises :class:`CannotReplay`, which says what is wrong with which."""
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > grading.MAX_CASES:
        raise CannotReplay(f"There are {len(lines)} cases; {grading.MAX_CASES} are allowed.")
    said: list[Any] = []
    for number, line in enumerate(lines, start=1):
        try:
            said.append(json.loads(line))
        except (ValueError, RecursionError):
            raise CannotReplay(f"Case {number}: {_FORM}.") from None
    wanted = [_case_of(number, each) for number, each in enumerate(said, start=1)]
    rows = Turn.objects.select_related("conversation__agent").filter(pk__in=[turn_id for turn_id, _ in wanted])
    turns = {turn.pk: turn for turn in rows}
    cases: list[Case] = []
    for number, (turn_id, expected) in enumerate(wanted, start=1):
        if turn_id not in turns:
            raise CannotReplay(f"Case {number}: there is no turn {turn_id}.")
        cases.append((turns[turn_id], expected))
    return cases


def _case_of(number: int, said: Any) -> tuple[UUID, dict[str, Any] | None]:
    try:
        turn_id = UUID(said["turn"])
        expected, texts = said.get("expected"), said.get("contain", [])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CannotReplay(f"Case {number}: {_FORM}.") from None
    if not isinstance(expected, str | None):
        raise CannotReplay(f"Case {number}: expected is a text.")
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise CannotReplay(f"Case {number}: contain is a list of texts.")
    if len(expected or "") + sum(map(len, texts)) > MAX_EXPECTED:
        raise CannotReplay(f"Case {number}: {MAX_EXPECTED:,} characters are allowed in what is expected.")
    if any("\0" in each for each in (expected or "", *texts)):
        raise CannotReplay(f"Case {number}: a text holds a null character.")
    return turn_id, ({"words": expected} if expected is not None else {}) | {"contains": texts}


def create(name: str, *, cases: Sequence[Case], graders: Any = None, max_tokens: int | None = None) -> ReplaySet:
    """A new set; raises :class:`CannotReplay`, as for a name that is taken."""
    graders = [] if graders is None else graders
    grading.check_graders(graders)
    try:
        with transaction.atomic():
            made = ReplaySet.objects.create(name=name, graders=graders, max_tokens=max_tokens)
            add(made, cases)
    except IntegrityError:
        raise CannotReplay(f"There is a set named {name} already.") from None
    return made


def add(of_set: ReplaySet, cases: Iterable[Case]) -> int:
    """Put cases into a set; of a turn that is in it already, what is expected is replaced. How many it then has. Raises
    :class:`CannotReplay`."""
    with transaction.atomic():
        ReplaySet.objects.select_for_update().get(pk=of_set.pk)  # so that two cannot pass the limit together
        for turn, expected in cases:
            if not turn.ended:
                raise CannotReplay(f"The turn {turn.pk} has not ended; it makes a case once it has.")
            ReplayCase.objects.update_or_create(of_set=of_set, turn=turn, defaults={"expected": expected})
        count = of_set.cases.count()
        if count > grading.MAX_CASES:
            raise CannotReplay(f"The set would have {count} cases; {grading.MAX_CASES} are allowed.")
    return count


def collect(name: str, cases: Sequence[Case]) -> ReplaySet:
    """Put cases into the set of a name, which is made if there is none. Raises :class:`CannotReplay`."""
    of_set = ReplaySet.objects.filter(name=name).first()
    if of_set is None:
        return create(name, cases=cases)
    add(of_set, cases)
    return of_set


def start(of_set: ReplaySet, changes: Changes, *, by: str, max_tokens: int | None = None) -> ReplayRun:
    """Have all cases of a set replayed. ``max_tokens``: in the place of the set's own. Raises :class:`CannotReplay`."""
    rows = of_set.cases.select_related("turn__conversation__agent").order_by("pk")
    if changes.version is not None and of_set.agent_id is not None:  # a version of it is nothing to others
        rows = rows.filter(turn__conversation__agent=of_set.agent_id)
    cases = [(case.turn, case.expected) for case in rows]
    if not cases:
        raise CannotReplay(f"The set {of_set.name} has no cases{' of its agent' if of_set.agent_id else ''}.")
    return grading.begin(
        of_set.name,
        cases,
        changes,
        of_set.graders,
        by=by,
        of_set=of_set,
        max_tokens=of_set.max_tokens if max_tokens is None else max_tokens,
    )
