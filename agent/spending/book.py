"""What a process knows of prices and budgets, and of providers that are left alone for a while. It looks again once a
second, while there is work: not at each call."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta

from django.conf import settings
from django.db.models import DurationField, ExpressionWrapper, F
from django.db.models.functions import Coalesce
from django.db.models.signals import post_delete, post_save

from agent.llm.breaker import breaker
from agent.models import ProviderOutage
from agent.spending.models import Budget, Measure, ModelPrice
from agent.spending.periods import Every, Period, period_of
from agent.spending.prices import Price, find
from nanohost.lib.clock import Now
from nanohost.lib.statements import Given, Rows

# A budget that was made or changed elsewhere counts after so many seconds.
FRESH_SECONDS = 1.0


@dataclass(frozen=True)
class Limit:
    """A budget that counts: ``amount`` in tokens, or in millionths of the currency. Each as its column's."""

    id: int
    name: str
    whose: str
    agent_id: int | None
    owner_id: int | None
    api_key_id: int | None
    measure: str
    every: str
    amount: int

    @property
    def is_money(self) -> bool:
        """Whether it counts money; else tokens."""
        return self.measure == Measure.MONEY

    def period(self, now: datetime) -> Period:
        """The day or month that a moment is in."""
        return period_of(Every(self.every), now, settings.TIME_ZONE)


@dataclass(frozen=True, kw_only=True)
class Book:
    """What was read. ``read_at``: on this process's monotonic clock."""

    prices: Sequence[Price]
    limits: Sequence[Limit]
    read_at: float
    # For as long as this is the book, which is a second: what was found by names, and of which budgets, in which of
    # their periods, there was something left.
    _found: dict[tuple[str, ...], Price | None] = field(default_factory=dict)
    with_rest: set[tuple[int, date]] = field(default_factory=set)

    def price_of(self, names: tuple[str, ...], now: datetime) -> Price | None:
        """What a model of these names costs, the first that has a price; None if that is not known."""
        if names not in self._found:
            found = (find(self.prices, name, provider=settings.LLM_PROVIDER, now=now) for name in dict.fromkeys(names))
            self._found[names] = next((price for price in found if price), None)
        return self._found[names]


_prices = Rows[tuple[object, ...]](
    lambda: (
        ModelPrice.objects.filter(currency=Given("currency"))
        .order_by()
        .values_list(
            "model", "prompt", Coalesce("cached_prompt", "prompt"), "completion", "valid_from", "written_prompt"
        )
    )
)
_limits = Rows[tuple[object, ...]](
    lambda: (
        Budget.objects.filter(is_on=True)
        .order_by("id")
        .values_list("id", "name", "whose", "agent_id", "owner_id", "api_key_id", "measure", "every", "amount")
    )
)


# How long they are left alone still; or since when they are to be asked, until one has answered.
_outages = Rows[tuple[str, timedelta]](
    lambda: (
        ProviderOutage.objects.filter(until__isnull=False)
        .order_by()
        .values_list("provider", ExpressionWrapper(F("until") - Now(), output_field=DurationField()))
    )
)


class _Shelf:
    """The process's one book."""

    def __init__(self) -> None:
        self._book: Book | None = None
        self._reading = threading.Lock()

    def fresh(self) -> Book | None:
        """The book, if it was read a moment ago."""
        book = self._book
        return book if book and time.monotonic() - book.read_at < FRESH_SECONDS else None

    def read(self) -> Book:
        """The book, read again unless it is fresh; by one thread at a time."""
        return self._read(lambda book: time.monotonic() - book.read_at < FRESH_SECONDS)

    def read_again(self) -> Book:
        """The book as it is now, or was read since this was called."""
        asked_at = time.monotonic()
        return self._read(lambda book: book.read_at >= asked_at)

    def _read(self, is_good: Callable[[Book], bool]) -> Book:
        if (book := self._book) and is_good(book):
            return book
        with self._reading:
            if (book := self._book) and is_good(book):  # whoever was before us has just read it
                return book
            now, read_at = time.monotonic(), breaker.now()
            names = ("model", "prompt", "cached_prompt", "completion", "valid_from", "written_prompt")
            rows = _prices(currency=settings.CURRENCY)
            prices = [Price(**dict(zip(names, row, strict=True))) for row in rows]  # type: ignore[arg-type]  # as the columns are
            breaker.learn({name: seconds.total_seconds() for name, seconds in _outages()}, read_at=read_at)
            limits = [Limit(*row) for row in _limits()]  # type: ignore[arg-type]  # as above
            self._book = Book(prices=prices, limits=limits, read_at=now)
            return self._book

    def forget(self) -> None:
        """Read it again when it is needed next."""
        self._book = None


_shelf = _Shelf()
fresh, read, read_again, forget = _shelf.fresh, _shelf.read, _shelf.read_again, _shelf.forget


def note_no_rest() -> None:
    """Look at each budget again before the next turn: one was used up just now."""
    if known := fresh():
        known.with_rest.clear()


def _changed(**_: object) -> None:
    """What this process has changed itself it knows at once; within the transaction, and for others after it."""
    forget()


for _rows in (ModelPrice, Budget):
    post_save.connect(_changed, sender=_rows, weak=False)
    post_delete.connect(_changed, sender=_rows, weak=False)
