"""API keys in the admin: who has one, whether it opens anything, and its revocation.

Keys are made by ``manage.py keys create``, which shows them once; neither a key nor its digest is shown here.
"""

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest

from nanohost.accounts.models import ApiKey
from nanohost.lib.admin import REVOKE, ReadOnlyAdmin


@admin.register(ApiKey)
class ApiKeyAdmin(ReadOnlyAdmin):
    """Rows stay when a key is revoked, so that what it did can still be traced."""

    list_display = ["__str__", "owner", "state", "created_at", "expires_at", "revoked_at", "last_used_at"]
    list_filter = ["revoked_at", "owner"]
    list_select_related = ["owner"]
    search_fields = ["prefix", "owner__username"]
    fields = ["prefix", "owner", "state", "created_at", "expires_at", "revoked_at", "last_used_at"]
    readonly_fields = ["state"]
    actions = ["revoke"]

    @admin.action(description="Revoke the selected keys", permissions=[REVOKE])
    def revoke(self, request: HttpRequest, chosen: QuerySet[ApiKey]) -> None:
        for key in chosen:
            key.revoke()
            self.log_change(request, key, "Revoked.")
        self.message_user(request, f"{len(chosen)} keys are revoked.", messages.SUCCESS)
