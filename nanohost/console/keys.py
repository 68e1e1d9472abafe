"""API keys in the admin: who has one, what it may do, whether it opens anything; they are made, changed and revoked.

A key is shown once, by the answer to the form that made it: in no address, session, cookie or log. Neither it nor its
digest is shown ever after.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.contrib.auth import get_user_model
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from unfold.widgets import (
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminIntegerFieldWidget,
)

from agent.models import Agent
from nanohost.accounts import keys
from nanohost.accounts.models import (
    EVERY_AGENT,
    MAX_DAYS,
    NEW_SCOPES,
    ApiKey,
    Scope,
    validate_names,
    validate_networks,
    validate_origins,
)
from nanohost.lib.admin import REVOKE, Lines, ModelAdmin


class KeyForm(forms.ModelForm):  # type: ignore[type-arg]  # Django's own is not subscriptable
    """What a key may do; of a new one also whose it is."""

    scopes = forms.MultipleChoiceField(
        choices=[(each.value, each.value) for each in Scope],
        initial=NEW_SCOPES,
        widget=UnfoldAdminCheckboxSelectMultipleWidget(),
        help_text=" ".join(f"{each.value}: {each.label}." for each in Scope),
    )
    agent_names = forms.MultipleChoiceField(
        label="Agents",
        required=False,
        widget=UnfoldAdminCheckboxSelectMultipleWidget(),
        help_text="The agents that it may name, and whose conversations it opens. None: those that are public.",
    )
    model_names = Lines(
        label="Models",
        required=False,
        validators=[validate_names],
        help_text="The models that it may name, beside an agent's own, one a line. None: those of LLM_MODELS.",
    )
    networks = Lines(
        required=False,
        validators=[validate_networks],
        help_text="From where it may be used, one a line, such as 203.0.113.0/24. None: from anywhere.",
    )
    allowed_origins = Lines(
        label="Allowed origins",
        required=False,
        validators=[validate_origins],
        help_text="Web pages that may embed a chat, one a line, such as https://example.org. None: no page.",
    )
    days = forms.IntegerField(
        label="Expires after so many days",
        required=False,
        min_value=1,
        max_value=MAX_DAYS,
        widget=UnfoldAdminIntegerFieldWidget,
        help_text="Counted from now; after that it is refused. Empty: no change, which for a new key means never.",
    )

    class Meta:
        model = ApiKey
        fields = ["owner", *(name for name in keys.LIMITS if name != "expires_at")]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if isinstance(owner := self.fields.get("owner"), forms.ModelChoiceField):
            owner.queryset = get_user_model().objects.filter(is_active=True).order_by("username")
        if isinstance(names := self.fields.get("agent_names"), forms.MultipleChoiceField):
            names.choices = _agents(self.instance.agent_names)

    def limits(self) -> dict[str, Any]:
        """What was set, by the names of a key's fields."""
        said = {name: self.cleaned_data[name] for name in keys.LIMITS if name in self.cleaned_data}
        if days := self.cleaned_data["days"]:
            said["expires_at"] = timezone.now() + timedelta(days=days)
        return said


def _agents(chosen: Iterable[str]) -> list[tuple[str, str]]:
    """Those that there are, and those that the key names all the same."""
    there = dict(Agent.objects.order_by("name").values_list("name", "is_public"))
    known = [(name, f"{name} (public)" if is_public else name) for name, is_public in there.items()]
    gone = [(name, f"{name} (there is none)") for name in chosen if name not in there and name != EVERY_AGENT]
    return [(EVERY_AGENT, "every agent"), *known, *gone]


@admin.register(ApiKey)
class ApiKeyAdmin(ModelAdmin):
    """Rows stay when a key is revoked, so that what it did can still be traced."""

    nothing_yet = "Programs use keys to sign in. Add one for each program; its text is shown once."
    form = KeyForm
    list_per_page = 50
    list_display = ["__str__", "name", "owner", "state", "may", "wider", "expires_at", "last_used_at"]
    list_filter = ["revoked_at", "owner"]
    list_select_related = ["owner"]
    search_fields = ["prefix", "owner__username"]
    search_fields_of_editors = ["name"]
    readonly_fields = ["prefix", "owner", "state", "created_at", "expires_at", "revoked_at", "last_used_at"]
    _set: ClassVar = [
        "name",
        "scopes",
        "agent_names",
        "model_names",
        "networks",
        "allowed_origins",
        "requests_per_minute",
        "turns_at_once",
        "cancel_on_disconnect",
    ]
    actions = ["revoke"]

    @admin.display(description="may")
    def may(self, key: ApiKey) -> str:
        return ", ".join(key.scopes)

    @admin.display(description="wider than a new key", boolean=True)
    def wider(self, key: ApiKey) -> bool:
        return key.is_wider(public=key.public_agents)  # type: ignore[attr-defined]  # looked up with the list

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        listed = super().get_changelist_instance(request)
        listed.result_list = list(listed.result_list)
        public = set(Agent.objects.filter(is_public=True).values_list("name", flat=True))
        for key in listed.result_list:
            key.public_agents = public
        return listed

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: ApiKey | None = None) -> bool:
        may_change: bool = super().has_change_permission(request, obj)
        return may_change and (obj is None or obj.revoked_at is None)

    def get_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> Any:
        shown = [*self.readonly_fields, "days"] if self.has_change_permission(request, obj) else self.readonly_fields
        return [*self._set, *shown] if obj else ["owner", *self._set, "days"]

    def get_readonly_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> Any:
        return self.readonly_fields if obj else []

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        if change:
            keys.change(obj, **form.limits())
            return
        made, obj.shown_once = keys.make(owner=obj.owner, **form.limits())
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
        for key in chosen.select_related("owner"):
            keys.revoke(key)
            self.log_change(request, key, "Revoked.")
        self.message_user(request, f"{len(chosen)} keys are revoked.", messages.SUCCESS)
