"""What fields say of themselves, changed by a migration that takes no time.

Django has an ``AlterField`` for each, which asks nothing of the database either, but makes the models anew that belong
together: for three hundred fields, five seconds of a first start.
"""

from collections.abc import Mapping
from typing import Any

from django.db.migrations.operations.base import Operation


class SetHelpTexts(Operation):
    """New help texts of fields, by model and field. There is nothing to undo in a database."""

    reduces_to_sql = False

    def __init__(self, texts: Mapping[str, Mapping[str, str]]) -> None:
        self.texts = texts

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        """As Django's operations."""
        return type(self).__qualname__, [self.texts], {}

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Set them in the state that the next migrations are made from."""
        for model, texts in self.texts.items():
            fields = state.models[app_label, model].fields
            for name, text in texts.items():
                fields[name] = fields[name].clone()
                fields[name].help_text = text

    def database_forwards(self, *args: Any) -> None:
        """Nothing."""

    def database_backwards(self, *args: Any) -> None:
        """Nothing."""

    def describe(self) -> str:
        """As ``migrate --plan`` says it."""
        return "Change help texts"
