"""API keys in the admin: who has one, whether it opens anything; they are made and revoked.

A key is shown once, by the answer to the form that made it: in no address, session, cookie or log. Neither it nor its
digest is shown ever after.
"""

from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.auth import get_user_model
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from unfold.widgets import UnfoldAdminIntegerFieldWidget

from nanohost.accounts.models import MAX_DAYS, ApiKey
from nanohost.lib.admin import REVOKE, ReadOnlyAdmin


class KeyForm(forms.ModelForm):  # type: ignore[type-arg]  # Django's own is not subscriptable
    """Of a new key: whose it is, and for how long."""

    days = forms.IntegerField(
        label="Expires after so many days",
        required=False,
        min_value=1,
        max_value=MAX_DAYS,
        widget=UnfoldAdminIntegerFieldWidget,
        help_text="From then on it is refused; empty: never. It can be revoked at any time.",
    )

    class Meta:
        model = ApiKey
        fields = ["owner"]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if "owner" in self.fields:
            owner = self.fields["owner"]
            assert isinstance(owner, forms.ModelChoiceField)
            owner.queryset = get_user_model().objects.filter(is_active=True).order_by("username")


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

    def has_add_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return request.user.has_perm("accounts.add_apikey")

    def get_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> Any:
        return self.fields if obj else ["owner", "days"]

    def get_readonly_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> Any:
        return self.readonly_fields if obj else []

    def get_form(self, request: HttpRequest, obj: ApiKey | None = None, change: bool = False, **options: Any) -> Any:
        return super().get_form(request, obj, change, **options if change else options | {"form": KeyForm})

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        days = form.cleaned_data["days"]
        expires_at = timezone.now() + timedelta(days=days) if days else None
        made, obj.shown_once = ApiKey.objects.issue(owner=obj.owner, expires_at=expires_at)
        obj.pk = made.pk
        obj.refresh_from_db()

    def response_add(self, request: HttpRequest, obj: Any, post_url_continue: str | None = None) -> HttpResponse:
        """The key itself, which no redirection could carry without leaving it somewhere."""
        told = {"title": f"API key {obj}", "opts": self.opts, "key": obj.shown_once}
        told |= {"owner": obj.owner.get_username(), "expires_at": obj.expires_at}
        context = self.admin_site.each_context(request) | told
        return TemplateResponse(request, "admin/accounts/key_made.html", context)

    @admin.action(description="Revoke the selected keys", permissions=[REVOKE])
    def revoke(self, request: HttpRequest, chosen: QuerySet[ApiKey]) -> None:
        for key in chosen:
            key.revoke()
            self.log_change(request, key, "Revoked.")
        self.message_user(request, f"{len(chosen)} keys are revoked.", messages.SUCCESS)
