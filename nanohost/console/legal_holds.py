"""Legal holds in the admin: placed and released, each with its reason; none is ever deleted."""

from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.widgets import UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

from nanohost.accounts import holds
from nanohost.accounts.models import LegalHold
from nanohost.console.holding import subject_named
from nanohost.lib.admin import BoundedPaginator, ModelAdmin, excerpt, link_to
from nanohost.lib.text import storable

_PAGES: dict[str, str] = {
    LegalHold.Kind.OWNER: "auth_user",
    LegalHold.Kind.CONVERSATION: "conversations_conversation",
}


class PlaceForm(forms.ModelForm):  # type: ignore[type-arg]  # Django's own is not subscriptable
    """What a new hold is on, and why."""

    subject = forms.CharField(
        label="Whom or what",
        max_length=200,
        widget=UnfoldAdminTextInputWidget(),
        help_text="The name of an owner or an agent, or the id of a conversation.",
    )

    class Meta:
        model = LegalHold
        fields = ["kind", "reason"]

    def clean(self) -> Any:
        said: Any = super().clean()
        if said.get("kind") and said.get("subject"):
            try:
                self.subject_of_hold = subject_named(said["kind"], said["subject"])
            except ValidationError as error:
                self.add_error("subject", error)
        return said


class ReleaseForm(forms.ModelForm):  # type: ignore[type-arg]
    """Why a hold is released."""

    because = forms.CharField(
        label="Release it, because",
        max_length=2000,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 3}),
        help_text="From then on, data that it kept is deleted like everything else. The audit log keeps the reason.",
    )

    class Meta:
        model = LegalHold
        fields: list[str] = []


class CountsFilter(admin.SimpleListFilter):
    """Whether a hold keeps anything now."""

    title, parameter_name = "counts", "counts"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("now", "now"), ("released", "released")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[LegalHold]) -> QuerySet[LegalHold]:
        chosen = {"now": True, "released": False}.get(self.value() or "")
        return queryset if chosen is None else queryset.filter(released_at__isnull=chosen)


@admin.register(LegalHold)
class LegalHoldAdmin(ModelAdmin):
    """What a hold is on is deleted by nothing and nobody until it is released."""

    nothing_yet = "What is on hold cannot be deleted. Place a hold on a person or a conversation that must be kept."

    list_display = ["placed_at", "kind", "on", "why", "placed_by", "released_at"]
    list_filter = ["kind", CountsFilter]
    paginator = BoundedPaginator
    show_full_result_count = False
    readonly_fields = ["on", "placed_by", "placed_at", "released_by", "released_because", "released_at"]

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **options: Any) -> Any:
        options["form"] = ReleaseForm if obj else PlaceForm
        return super().get_form(request, obj, change, **options)

    def get_fieldsets(self, request: HttpRequest, obj: LegalHold | None = None) -> Any:
        if obj is None:
            return [(None, {"fields": ["kind", "subject", "reason"]})]
        fields = ["kind", "on", "reason", "placed_by", "placed_at"]
        if obj.released_at:
            return [(None, {"fields": fields}), ("Released", {"fields": list(self.readonly_fields[3:])})]
        may = self.has_change_permission(request, obj)
        return [(None, {"fields": fields}), *([("Release", {"fields": ["because"]})] if may else [])]

    def get_readonly_fields(self, request: HttpRequest, obj: LegalHold | None = None) -> list[str]:
        return [*self.readonly_fields, *(["kind", "reason"] if obj else [])]

    def has_change_permission(self, request: HttpRequest, obj: LegalHold | None = None) -> bool:
        return super().has_change_permission(request, obj) and not (obj and obj.released_at)

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: LegalHold, form: Any, change: bool) -> None:
        by = request.user.get_username()
        if change:
            holds.release(obj, reason=storable(form.cleaned_data["because"]), by=by)
            return
        reason = storable(form.cleaned_data["reason"])
        placed = holds.place(kind=form.cleaned_data["kind"], reason=reason, by=by, **form.subject_of_hold)
        obj.pk = placed.pk
        obj.refresh_from_db()

    @admin.display(description="on")
    def on(self, hold: LegalHold) -> str:
        page = _PAGES.get(LegalHold.Kind(hold.kind)) if hold.kind in LegalHold.Kind.values else None
        return (
            link_to(page, hold.subject, str(hold.subject)) if page and hold.subject is not None else str(hold.subject)
        )

    @admin.display(description="why")
    def why(self, hold: LegalHold) -> str:
        return excerpt(hold.reason, 80)
