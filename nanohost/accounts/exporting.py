"""Lists of the console as files of values; the audit log is told of each."""

import csv
import io
from collections.abc import Iterator
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, StreamingHttpResponse
from django.urls import path

from nanohost.accounts import audit
from nanohost.lib.admin import ModelAdmin
from nanohost.lib.downloads import as_cell

# Whoever wants more narrows the list: by its filters, a file holds so many rows, the newest.
MAX_ROWS = 10_000


class ExportedAdmin(ModelAdmin):
    """A list with a link to what it shows, narrowed as it is, as comma-separated values."""

    list_before_template = "admin/accounts/list_export.html"
    # The columns of the file, which are the model's own.
    exported: tuple[str, ...] = ()

    def get_urls(self) -> list[Any]:
        name = f"{self.opts.app_label}_{self.opts.model_name}_export"
        return [path("export.csv", self.admin_site.admin_view(self.export_view), name=name), *super().get_urls()]

    def export_view(self, request: HttpRequest) -> StreamingHttpResponse:
        """The rows of the list as a file."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        rows = self.get_changelist_instance(request).queryset.order_by("-pk")[:MAX_ROWS]
        audit.record("list.exported", kind=self.opts.label_lower, after={"query": request.GET.urlencode()[:500]})
        headers = {"Content-Disposition": f'attachment; filename="{self.opts.model_name}s.csv"'}
        return StreamingHttpResponse(self._lines(rows), content_type="text/csv; charset=utf-8", headers=headers)

    def _lines(self, rows: Any) -> Iterator[bytes]:
        yield _line(self.exported)
        for row in rows.values_list(*self.exported).iterator(chunk_size=500):
            yield _line([as_cell(value) for value in row])


def _line(cells: Any) -> bytes:
    written = io.StringIO()
    csv.writer(written).writerow(cells)
    return written.getvalue().encode()
