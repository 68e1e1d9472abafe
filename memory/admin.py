"""What agents remember, in the admin: each document with all its versions, what was kept aside, and the history log."""

from collections.abc import Sequence
from datetime import date
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.html import format_html
from unfold.widgets import UnfoldAdminTextareaWidget, UnfoldBooleanSwitchWidget

from memory import documents, index
from memory.errors import MemoryChanged, MemoryTooLong
from memory.models import HistoryEntry, Memory, MemoryVersion
from memory.words import words_of
from nanohost.lib.admin import GrowingAdmin, diff, excerpt, link_to, link_to_list

# Entries that a search shows.
MAX_FOUND = 100


class MemoryForm(forms.ModelForm):  # type: ignore[type-arg]  # Django's own is not subscriptable
    """The content, and which version of it was read."""

    content = forms.CharField(
        required=False,
        strip=False,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 30}),
        help_text="In every prompt.",
    )
    read_version = forms.IntegerField(widget=forms.HiddenInput)
    trusted = forms.BooleanField(
        required=False,
        widget=UnfoldBooleanSwitchWidget,
        help_text="I have read it, and the notes: from now on they taint no conversation.",
    )

    class Meta:
        model = Memory
        fields = ["content"]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fields["read_version"].initial = self.instance.version
        if not (self.instance.tainted_by or self.instance.notes_tainted_by):
            self.fields["trusted"].disabled = True
            self.fields["trusted"].help_text = "Nothing of it was learnt where untrusted text had entered."

    def clean_content(self) -> str:
        text: str = self.cleaned_data["content"]
        text = text.replace("\r\n", "\n")  # as browsers write it
        if reason := documents.too_long(text):
            raise ValidationError(reason)
        return text

    def clean_read_version(self) -> int:
        """Nobody rewrites it from here on until the page's transaction ends."""
        head = documents.locked_head(agent=self.instance.agent, owner_id=self.instance.owner_id)
        read: int = self.cleaned_data["read_version"]
        if read != head.version:
            raise ValidationError(f"{MemoryChanged.title} (Yours is version {read}, the latest is {head.version}.)")
        return read


def _size(text: str) -> str:
    return f"{len(text)} of {settings.MEMORY_MAX_CHARS}"


@admin.register(Memory)
class MemoryAdmin(GrowingAdmin):
    """The document that is in every prompt of an agent for an owner. To change it is to make a new version."""

    nothing_yet = "What an agent remembers about a person appears here, from its tools and from summaries."

    form = MemoryForm
    list_display = ["agent", "owner", "size", "version", "tainted_by", "notes_on", "updated_at"]
    list_prefetch_related = ["owner"]
    search_fields = ["owner__username"]
    search_help_text = "The whole name of an owner."
    readonly_fields = ["agent", "owner", "version", "size", "rows", "notes_on", "notes"]
    readonly_fields += ["tainted_by", "notes_tainted_by", "updated_at"]
    fieldsets = [
        (None, {"fields": ["agent", "owner", "version", "size", "content", "read_version", "rows"]}),
        ("Untrusted", {"fields": ["tainted_by", "trusted"]}),
        ("Notes of the day", {"fields": ["notes_on", "notes", "notes_tainted_by"]}),
        ("Time", {"fields": ["updated_at"]}),
    ]

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return request.user.has_perm("memory.change_memory")

    def save_model(self, request: HttpRequest, obj: Memory, form: Any, change: bool) -> None:
        if form.cleaned_data["trusted"]:
            documents.trust(agent=obj.agent, owner_id=obj.owner_id)
        documents.rewrite(
            agent=obj.agent,
            owner_id=obj.owner_id,
            base=form.cleaned_data["read_version"],
            content=form.cleaned_data["content"],
            source=documents.Source.PERSON,
            made_by=request.user.get_username(),
            checked=False,
        )

    @admin.display(description="characters")
    def size(self, memory: Memory) -> str:
        return _size(memory.content)

    @admin.display(description="its rows")
    def rows(self, memory: Memory) -> str:
        whose = {"owner": memory.owner_id, "agent": memory.agent}
        versions = link_to_list("memory_memoryversion", "all versions", **whose)
        return format_html("{} · {}", versions, link_to_list("memory_historyentry", "history log", **whose))


class AsideFilter(admin.SimpleListFilter):
    """What was kept aside, and whether anybody has decided on it."""

    title, parameter_name = "kept aside", "aside"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, str]]:
        return [("open", "yes, to be decided on"), ("settled", "yes, and decided on")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        state = {"open": Q(number=None, settled_at=None), "settled": Q(number=None, settled_at__isnull=False)}
        return queryset.filter(state.get(self.value() or "", Q()))


@admin.register(MemoryVersion)
class MemoryVersionAdmin(GrowingAdmin):
    """Every version there was, and those that were kept aside, with where each came from."""

    nothing_yet = "Each change of what an agent knows is kept here, with where it came from."

    list_display = [
        "created_at",
        "__str__",
        "owner",
        "source",
        "model",
        "made_by",
        "size",
        "aside_because",
        "settled_by",
    ]
    list_filter = [AsideFilter]
    list_prefetch_related = ["owner"]
    search_fields = ["owner__username"]
    search_help_text = "The whole name of an owner."
    actions = ["compare", "take", "dismiss"]
    readonly_fields = ["whose", "size", "differences"]
    fieldsets = [
        (None, {"fields": ["whose", "agent", "owner", "number", "base", "size", "content", "differences"]}),
        ("Where it came from", {"fields": ["source", "tainted_by", "model", "made_by", "created_at"]}),
        ("The messages", {"fields": ["conversation_id", "turn_id", "first_seq", "last_seq"]}),
        ("Kept aside", {"fields": ["aside_because", "settled_at", "settled_by"]}),
    ]

    def has_decide_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("memory.change_memory")

    @admin.display(description="memory")
    def whose(self, version: MemoryVersion) -> str:
        head = Memory.objects.filter(owner_id=version.owner_id, agent=version.agent).first()
        return link_to("memory_memory", head.pk, str(head)) if head else "–"

    @admin.display(description="characters")
    def size(self, version: MemoryVersion) -> str:
        return _size(version.content)

    @admin.display(description="differences to the version it was made from")
    def differences(self, version: MemoryVersion) -> str:
        base = MemoryVersion.objects.filter(owner_id=version.owner_id, agent=version.agent, number=version.base).first()
        return diff(base.content if base else "", version.content)

    @admin.action(description="Compare the two selected versions", permissions=["view"])
    def compare(self, request: HttpRequest, chosen: QuerySet[MemoryVersion]) -> HttpResponse | None:
        versions = list(chosen.order_by("pk")[:3])
        if len(versions) != 2:
            self.message_user(request, "Select two versions.", messages.WARNING)
            return None
        older, newer = versions
        shown = {"older": older, "newer": newer, "differences": diff(older.content, newer.content)}
        context = self.admin_site.each_context(request) | {"title": "Two versions", "opts": self.opts} | shown
        return TemplateResponse(request, "admin/memory/compare.html", context)

    @admin.action(description="Make the selected version the latest", permissions=["decide"])
    def take(self, request: HttpRequest, chosen: QuerySet[MemoryVersion]) -> None:
        versions = list(chosen[:2])
        if len(versions) != 1:
            self.message_user(request, "Select one version.", messages.WARNING)
            return
        try:
            made = documents.restore(versions[0], by=request.user.get_username())
        except MemoryTooLong as error:
            self.message_user(request, str(error), messages.ERROR)
            return
        told = f"Version {made.number} has its content." if made else "The latest version has this content already."
        self.message_user(request, told, messages.SUCCESS)

    @admin.action(description="Dismiss the selected versions that were kept aside", permissions=["decide"])
    def dismiss(self, request: HttpRequest, chosen: QuerySet[MemoryVersion]) -> None:
        with transaction.atomic():
            for version in chosen:
                documents.dismiss(version, by=request.user.get_username())
        self.message_user(request, "Those that were kept aside are dismissed.", messages.SUCCESS)


@admin.register(HistoryEntry)
class HistoryEntryAdmin(GrowingAdmin):
    """What happened, as it was told."""

    nothing_yet = "When a long conversation is summarised, what happened in it is noted here."

    list_display = ["happened_at", "__str__", "kind", "owner", "content_begins", "conversation_id"]
    list_prefetch_related = ["owner"]
    search_fields = ["owner__username"]
    search_help_text = "The whole name of an owner; in the log of one agent and owner, words."
    fields = ["agent", "owner", "kind", "content", "day", "happened_at", "happened_until", "conversation_id", "turn_id"]
    fields += ["first_seq", "last_seq", "model", "tainted_by", "created_at"]

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        # By time where there is an index for it; else by when they were written.
        return ("-happened_at", "-id") if _whose(request) else ("-id",)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[HistoryEntry], search_term: str
    ) -> tuple[QuerySet[HistoryEntry], bool]:
        """In the log of one agent and owner: by words, as agents find them."""
        if not (whose := _whose(request)) or not (words := words_of(search_term)):
            return super().get_search_results(request, queryset, search_term)
        owner_id, agent = whose
        found = index.find(words, agent=agent, owner_id=owner_id, notes_after=date.min, limit=MAX_FOUND)
        return queryset.filter(pk__in=found), False

    @admin.display(description="content")
    def content_begins(self, entry: HistoryEntry) -> str:
        return excerpt(entry.content)


def _whose(request: HttpRequest) -> tuple[int, str] | None:
    """Whose log is shown, if it is that of one agent and owner."""
    owner, agent = request.GET.get("owner__exact", ""), request.GET.get("agent__exact", "")
    return (int(owner), agent) if owner.isascii() and owner.isdigit() and len(owner) < 19 and agent else None
