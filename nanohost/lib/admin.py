"""What the apps' admin pages share: read-only pages, links between them, and texts of strangers, shown safely."""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlencode
from uuid import UUID

from django import forms
from django.contrib import admin
from django.contrib.admin.utils import flatten_fieldsets, get_fields_from_path, unquote
from django.contrib.auth import get_permission_codename
from django.core.exceptions import FieldDoesNotExist, PermissionDenied
from django.core.paginator import Paginator
from django.db import models
from django.db.models import Q, QuerySet, UUIDField
from django.http import HttpRequest, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import escape, format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.text import capfirst
from unfold import forms as theme
from unfold.fields import UnfoldAdminReadonlyField
from unfold.widgets import UnfoldAdminTextareaWidget

from nanohost.lib.moments import exactly, number, when
from nanohost.lib.redaction import redact_known

if TYPE_CHECKING:  # the theme's are untyped, Django's own are not subscriptable
    _ModelAdmin = admin.ModelAdmin[Any]
    TabularInline = admin.TabularInline[Any, Any]
else:
    from unfold.admin import ModelAdmin as _ModelAdmin
    from unfold.admin import TabularInline

# What an operator may do besides looking: permissions of actions, ``@admin.action(permissions=[CANCEL])``. Each is a
# permission of the page's model, such as ``conversations.cancel_turn``; `manage.py prepare` makes them.
CANCEL, REQUEUE, FAIL, TOGGLE, PAUSE, REVOKE, DECIDE, REPLAY = ACTIONS = (
    *("cancel", "requeue", "fail", "toggle", "pause", "revoke", "decide", "replay"),
)


# What the context of the one page that shows a new secret calls it.
SHOWN_ONCE = "shown_once"


# How a list may be narrowed by a column that is shown: whether it is this, and where times and numbers are of an order.
# Nothing tells a text letter by letter: of many a text a page shows the beginning only, or not the secrets in it.
_SAME = ("", "__exact", "__in", "__isnull")
_ORDER = ("__gt", "__gte", "__lt", "__lte")
_OF_A_DATE = ("__year", "__month", "__day")
_ORDERED = (models.DateField, models.TimeField, models.DurationField, models.IntegerField, models.FloatField)


# And of what no list has an action for.
PIN, UNDO = "pin", "undo"


class _History:
    """Where a log tells what has become of an object: given the request, its kind and its key; None if nowhere, or if
    who asks may not see that."""

    address: Callable[[HttpRequest, str, str], str | None] | None = None


_history = _History()


def have_history(address: Callable[[HttpRequest, str, str], str | None]) -> None:
    """From now on, the history of an object is what is told at this address."""
    _history.address = address


@dataclass(frozen=True)
class _Column:
    """A list's column of moments or numbers, as all pages show them. Django takes it for a function."""

    field: Any
    show: Callable[[Any], str]
    short_description: str

    @property
    def __name__(self) -> str:
        return str(self.field.name)

    @property
    def admin_order_field(self) -> str:
        return str(self.field.name)

    def __call__(self, row: models.Model) -> str:
        return self.show(getattr(row, self.field.attname))


def _shown_by(field: Any, moment: Callable[[Any], str]) -> Callable[[Any], str] | None:
    """How pages show the values of a column, where they do it otherwise than Django."""
    if isinstance(field, models.DateTimeField):
        return moment
    # A number that names something is no amount.
    is_amount = isinstance(field, models.IntegerField) and not field.primary_key and not field.name.endswith("_id")
    return number if is_amount and not field.choices else None


class _ReadOnlyField(UnfoldAdminReadonlyField):
    """A field that is only shown: moments and numbers as in lists, and what its page calls it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        labels = getattr(self.model_admin, "labels", {})
        self.field["label"] = labels.get(self.field["name"], self.field["label"])

    def contents(self) -> Any:
        if isinstance(self.resolved_field, tuple):
            field, _, value = self.resolved_field
            if value is not None and (show := _shown_by(field, exactly)):
                return show(value)
        return super().contents()


# Neither the theme nor Django has another place for it.
theme.UnfoldAdminReadonlyField = _ReadOnlyField  # type: ignore[attr-defined]


class JsonField(forms.JSONField):
    """JSON of a column that has a default and cannot be null: what is left empty, in whatever way, is the default.

    Django's own makes None of it, and neither the column's validators nor the form's look at what is empty."""

    def __init__(self, *, default: Callable[[], Any], **options: Any) -> None:
        super().__init__(**options)
        self._default = default

    def to_python(self, value: Any) -> Any:
        if value is None:  # the form has no such field
            return None
        given, default = super().to_python(value), self._default()
        return default if given in self.empty_values and not isinstance(given, type(default)) else given


class ModelAdmin(_ModelAdmin):
    """A page of the console."""

    # What the page calls a column, where that is not the column's own name.
    labels: ClassVar[Mapping[str, str]] = {}
    # What an empty list says: what would stand there, and how it gets there.
    nothing_yet = ""
    # A list's filters stand beside it on a wide screen.
    list_filter_sheet = False
    # What else links to the list may look up, such as ``next_at__lt``.
    more_lookups: Sequence[str] = ()
    # Texts in which secrets are masked are searched by whoever sees them as they are: others could find a secret letter
    # by letter.
    search_fields_of_editors: Sequence[str] = ()

    def get_list_display(self, request: HttpRequest) -> Any:
        """The columns, with moments and numbers as all pages show them."""
        return [self._column(name) for name in super().get_list_display(request)]

    def _column(self, name: Any) -> Any:
        try:
            field: Any = self.opts.get_field(name)
        except (FieldDoesNotExist, TypeError):
            return name  # a method, or a function
        if not field.concrete:
            return name
        show = _shown_by(field, when)
        label = self.labels.get(field.name, str(field.verbose_name))
        return _Column(field, show, label) if show else name

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **options: Any) -> Any:
        if label := self.labels.get(db_field.name):
            options["label"] = capfirst(label)
        if isinstance(db_field, models.JSONField) and db_field.has_default() and not db_field.null:
            options.setdefault("form_class", partial(JsonField, default=db_field.get_default))
        return super().formfield_for_dbfield(db_field, request, **options)

    def name_of(self, row: Any) -> str:
        """What a page about a row is called."""
        return str(row)

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **options: Any) -> Any:
        if (row := options.get("obj")) is not None:
            context |= {"title": excerpt(self.name_of(row)), "subtitle": None}
        return super().render_change_form(request, context, *args, **options)

    def get_search_fields(self, request: HttpRequest) -> list[str]:
        """By which fields this user may search."""
        more = self.search_fields_of_editors if self.has_change_permission(request) else ()
        return [*super().get_search_fields(request), *more]

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Whether a list may be narrowed by this: by what is shown or filtered by, and nothing else. From the number of
        rows that are left, a column that no page shows could be read letter by letter."""
        filters = [each[0] if isinstance(each, tuple | list) else each for each in self.get_list_filter(request)]
        of_filters = (getattr(each, "parameter_name", None) for each in filters)
        shown = {self.opts.pk.name, self.date_hierarchy, *filters, *self.get_search_fields(request)}
        columns = self.get_list_display(request)
        shown |= {each.__name__ if isinstance(each, _Column) else each for each in columns}
        shown |= {*flatten_fieldsets(self.get_fieldsets(request))}
        by_columns = (self._lookups_by(name) for name in shown if isinstance(name, str))
        return lookup in {*self.more_lookups, *of_filters}.union(*by_columns)

    def _lookups_by(self, name: str) -> set[str]:
        """How to look a shown name up, if it is a column of the model itself."""
        try:
            field: Any = self.opts.get_field(name)
        except FieldDoesNotExist:
            return set()  # made of columns; or a search through a relation
        kinds = _SAME + (_ORDER if isinstance(field, _ORDERED) else ())
        if isinstance(field, models.DateField):
            kinds += _OF_A_DATE
        if field.is_relation:  # as Django's own filters do
            kinds += (f"__{field.target_field.name}__exact",)
        return {f"{name}{kind}" for kind in kinds}

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> Any:
        """What a log tells of the object, even if it is gone; or else what the console itself knows."""
        key = unquote(object_id)
        address = _history.address(request, self.opts.label_lower, key) if _history.address else None
        if not address:
            row = self.get_object(request, key)
            named = {"title": f"Change history: {excerpt(self.name_of(row))}"} if row else {}
            return super().history_view(request, object_id, named | (extra_context or {}))
        if not self.has_view_or_change_permission(request, self.get_object(request, key)):
            raise PermissionDenied
        return HttpResponseRedirect(address)

    def log_deletions(self, request: HttpRequest, queryset: Iterable[models.Model]) -> list[Any]:
        """One by one: of rows of the log that are made together, Django tells nobody."""
        one_by_one: Iterable[Any] = ([row] for row in queryset)
        return [entry for rows in one_by_one for entry in super(ModelAdmin, self).log_deletions(request, rows)]

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return self._may(request, CANCEL)

    def has_requeue_permission(self, request: HttpRequest) -> bool:
        return self._may(request, REQUEUE)

    def has_fail_permission(self, request: HttpRequest) -> bool:
        return self._may(request, FAIL)

    def has_toggle_permission(self, request: HttpRequest) -> bool:
        return self._may(request, TOGGLE)

    def has_pause_permission(self, request: HttpRequest) -> bool:
        return self._may(request, PAUSE)

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        return self._may(request, REVOKE)

    def has_decide_permission(self, request: HttpRequest) -> bool:
        return self._may(request, DECIDE)

    def has_replay_permission(self, request: HttpRequest) -> bool:
        return self._may(request, REPLAY)

    def _may(self, request: HttpRequest, act: str) -> bool:
        return request.user.has_perm(f"{self.opts.app_label}.{get_permission_codename(act, self.opts)}")


class ReadOnly:
    """Shows what happened; nobody adds to it, changes or deletes it by hand."""

    def has_add_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False


# A list shows so many rows at most; whoever looks for others has filters and the search.
MAX_LISTED = 500


class BoundedPaginator(Paginator):  # type: ignore[type-arg]  # Django's own is not subscriptable
    """Pages of the first rows: to count all of a table that grows without end is to read all of it."""

    @cached_property
    def count(self) -> int:
        """Of rows that are shown."""
        rows: QuerySet[Any] = self.object_list  # type: ignore[assignment]  # an admin's list is nothing else
        return rows[:MAX_LISTED].count()


class ReadOnlyAdmin(ReadOnly, ModelAdmin):
    """A read-only page."""

    list_per_page = 50


class GrowingAdmin(ReadOnlyAdmin):
    """A read-only page of a table that grows without end: no list counts all of its rows, and the search goes by index.

    ``search_fields`` are ids, found by their beginning, and texts, found as a whole; each has an index.
    """

    paginator = BoundedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER  # or each choice of each filter would be counted
    # What belongs to a page's rows is looked up for them; a join tempts the database to read all there is.
    list_select_related = ()
    list_prefetch_related: Sequence[str] = ()

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).prefetch_related(*self.list_prefetch_related)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Rows in which each of the words is found."""
        for word in search_term.split():
            found = Q(pk__in=())
            for name in self.search_fields:
                found |= _is(name, get_fields_from_path(self.model, name)[-1], word)
            queryset = queryset.filter(found)
        return queryset, False


def _is(name: str, field: Any, word: str) -> Q:
    """The field is the word, or begins with it if it is an id. As a range: a text's beginning would need no index."""
    if not isinstance(field, UUIDField):
        return Q(**{name: word})
    return begins(name, word) or Q(pk__in=())


def begins(name: str, word: str) -> Q | None:
    """That an id begins with a word; None if none does."""
    digits = word.replace("-", "").lower()
    if not re.fullmatch("[0-9a-f]{1,32}", digits):
        return None
    return Q(**{f"{name}__range": (UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f")))})


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


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> SafeString:
    """Rows with as many cells as there are heads; empty if there are none."""
    cells = "<td>{}</td>" * len(heads)
    body = format_html_join("", f"<tr>{cells}</tr>", rows)
    if not body:
        return SafeString("")
    head = format_html_join("", '<th scope="col">{}</th>', ((name,) for name in heads))
    return format_html("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>", head, body)


def diff(before: str, after: str) -> str:
    """What was changed in a text, line by line, three lines around each change; for a ``<pre>``."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=3)
    told = [line for line in lines if not line.startswith(("---", "+++"))]
    tags = {"+": "ins", "-": "del"}
    marked = [format_html("<{0}>{1}</{0}>", tags.get(line[:1], "span"), shown(line)) for line in told]
    return format_html('<pre class="diff">{}</pre>', mark_safe("\n".join(marked)))  # noqa: S308 -- each is escaped


def reason_in(request: HttpRequest) -> str:
    """Why somebody does what a form asks to be explained; empty if it was not said. PostgreSQL stores no NUL."""
    return request.POST.get("reason", "").replace("\x00", "").strip()


def excerpt(text: str, limit: int = 80) -> str:
    """The beginning of a text, in one line."""
    # Of a secret that is cut in two, the first half would be left.
    line = " ".join(redact_known(text[: 4 * limit + 2048]).split())
    return line if len(line) <= limit else f"{line[:limit]}…"


# What no reader sees: control characters, those that turn the direction of what follows them, that take no room, or
# that carry text of their own; and half a surrogate pair, of which no page can be made. Line feed and tab are left, and
# what joins the parts of an emoji.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ud800-\udfff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def shown(text: str) -> SafeString:
    """A stranger's text as HTML: nothing in it is markup, what nobody would see is named, known secrets are out."""
    whole = escape(redact_known(text).replace("\r\n", "\n"))
    marked = _UNSEEN.sub(lambda found: f'<span class="unseen">U+{ord(found[0]):04X}</span>', whole)
    return mark_safe(marked)  # noqa: S308 -- escaped above


class Lines(forms.CharField):
    """A list of texts, one a line."""

    widget = UnfoldAdminTextareaWidget(attrs={"rows": 3})

    def prepare_value(self, value: Any) -> Any:
        return "\n".join(value) if isinstance(value, list) else value

    def to_python(self, value: Any) -> Any:
        said = value if isinstance(value, list) else str(value or "").splitlines()
        return [each.strip() for each in said if each.strip()]

    def has_changed(self, initial: Any, data: Any) -> bool:
        return bool(self.to_python(initial) != self.to_python(data))
