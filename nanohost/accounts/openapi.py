"""What the API's description says of keys."""

from drf_spectacular.openapi import AutoSchema

from nanohost.accounts.authentication import scopes_of


class ScopedSchema(AutoSchema):
    """Says of each operation which scope it needs."""

    def get_description(self) -> str:  # type: ignore[override]  # as drf-spectacular has it
        needed = " or ".join(f"`{each}`" for each in scopes_of(self.view, self.method))
        said = super().get_description()
        return f"{said}\n\nScope: {needed}.".strip() if needed else said
