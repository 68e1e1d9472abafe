"""Those who wait for an answer are let go when the API key that they asked with opens nothing any more."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from django.db import Error

from nanohost.accounts.models import ApiKey

# Seconds between two looks at the keys of all who wait in this process, in one query.
LOOK_SECONDS = 2.0


@dataclass(eq=False)
class Use:
    """Somebody who waits, with a key. ``wake``: has them look at ``is_over``."""

    key_id: int
    wake: Callable[[], object]
    is_over: bool = False


class OpenKeys:
    """The keys of those who wait. Lives on an event loop. ``read``: which of these keys are active, asked aside."""

    def __init__(self, *, read: Callable[[Collection[int]], Awaitable[set[int]]]) -> None:
        self._read = read
        self._uses: set[Use] = set()
        self._looking: asyncio.Task[None] | None = None

    @contextmanager
    def used(self, key_id: int, wake: Callable[[], object]) -> Iterator[Use]:
        """While somebody waits. ``key_id``: 0, if they asked without a key."""
        use = Use(key_id, wake)
        if key_id:
            self._uses.add(use)
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look())
        try:
            yield use
        finally:
            self._uses.discard(use)

    async def _look(self) -> None:
        """Look at the keys, again and again, until nobody waits."""
        while self._uses:
            await asyncio.sleep(LOOK_SECONDS)
            with suppress(Error):  # they go on: whoever comes anew is refused meanwhile
                asked = {use.key_id for use in self._uses}
                gone = asked - await self._read(asked)  # of whoever has come meanwhile, nothing was asked
                for use in [use for use in self._uses if use.key_id in gone]:
                    use.is_over = True
                    use.wake()


def active_keys(key_ids: Collection[int]) -> set[int]:
    """Those of these keys that open something, of people who may use them."""
    active = ApiKey.objects.active().filter(pk__in=key_ids, owner__is_active=True)
    return set(active.values_list("pk", flat=True))
