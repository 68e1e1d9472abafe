"""Crash, with a secret in the traceback."""

import os
from typing import Any

from django.core.management.base import BaseCommand


class Command(BaseCommand):
    """See the module."""

    def handle(self, *args: Any, **options: Any) -> None:
        raise RuntimeError(f"crashed with {os.environ['LEAK_PAST_HANDLERS']}")
