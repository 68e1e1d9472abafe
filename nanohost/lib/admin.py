"""What the apps' admin pages share: read-only pages, links between them, and short texts."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html

if TYPE_CHECKING:  # Django's own are not subscriptable
    ModelAdmin = admin.ModelAdmin[Any]
    TabularInline = admin.TabularInline[Any, Any]
else:
    ModelAdmin, TabularInline = admin.ModelAdmin, admin.TabularInline


class ReadOnly:
    """Shows what happened; nobody adds to it, changes or deletes it by hand."""

    def has_add_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False


class ReadOnlyAdmin(ReadOnly, ModelAdmin):
    """A read-only page. Its tables grow without end, so that no list counts all of its rows."""

    show_full_result_count = False
    list_per_page = 50


class ReadOnlyInline(ReadOnly, TabularInline):
    """Read-only rows on another row's page."""

    extra = 0
    show_change_link = True

    def get_readonly_fields(self, request: HttpRequest, obj: object = None) -> Any:
        return self.fields


class KnownValues(admin.SimpleListFilter):
    """Filters by values the code knows. What a list holds may be of a stranger's choosing, and costs a scan to find."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(value, value) for value in self.values()]

    def values(self) -> Iterable[str]:
        """What can be chosen."""
        raise NotImplementedError

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        chosen = self.value()
        return queryset.filter(**{str(self.parameter_name): chosen}) if chosen else queryset


def link_to(page: str, key: object, text: str) -> str:
    """A link to a row's page; ``page`` is ``app_model``."""
    return format_html('<a href="{}">{}</a>', reverse(f"admin:{page}_change", args=[key]), text)


def link_to_list(page: str, text: str, **filters: object) -> str:
    """A link to a list of the rows that have these values."""
    query = urlencode({f"{name}__exact": str(value) for name, value in filters.items()})
    return format_html('<a href="{}?{}">{}</a>', reverse(f"admin:{page}_changelist"), query, text)


def excerpt(text: str, limit: int = 80) -> str:
    """The beginning of a text, in one line."""
    line = " ".join(text[: 4 * limit].split())
    return line if len(line) <= limit else f"{line[:limit]}…"
