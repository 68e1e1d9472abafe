"""Pages of tools that are refused until somebody has seen them as they are: of MCP servers, and of workspaces."""

from abc import abstractmethod
from typing import Any

from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.contrib.auth import get_permission_codename
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import path, reverse
from django.views.decorators.http import require_POST

from nanohost.lib.admin import ReadOnlyAdmin, link_to
from tools.models import ToolSetting

# As on the page where tools are enabled.
ENABLE = "tools.change_toolsetting"


class SeenToolAdmin(ReadOnlyAdmin):
    """A page on which somebody notes that they have seen a tool; its model has ``full_name`` and ``hash``."""

    change_form_outer_before_template = "admin/tools/see.html"

    @abstractmethod
    def see(self, request: HttpRequest, tool: Any, *, expected: str, allow: bool) -> bool:
        """Note that it was seen; False if it is not what they have seen any more."""

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(require_POST(self.see_view))
        return [path("<int:pk>/see/", view, name=f"{self.opts.db_table}_see"), *super().get_urls()]

    def see_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Note that somebody has seen it, as the form that they were shown has it."""
        if not self._may_see(request):
            raise PermissionDenied
        tool = self.model._default_manager.filter(pk=pk).first()
        if tool is None:
            raise Http404("There is no such tool.")
        allow = request.POST.get("decision") == "allow"
        if allow and not request.user.has_perm(ENABLE):
            raise PermissionDenied
        if self.see(request, tool, expected=request.POST.get("hash", ""), allow=allow):
            self.log_change(request, tool, "Seen, and allowed." if allow else "Seen.")
            self.message_user(request, f"{tool} was seen{' and is enabled' if allow else ''}.", messages.SUCCESS)
        else:
            self.message_user(request, "Nothing was done: it was changed meanwhile. Look again.", messages.WARNING)
        return redirect("../change/")

    def _may_see(self, request: HttpRequest) -> bool:
        return request.user.has_perm(f"{self.opts.app_label}.{get_permission_codename('change', self.opts)}")

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: Any = None
    ) -> Any:
        tool = self.get_object(request, unquote(object_id)) if object_id else None
        told = {"tool": tool, "may_see": self._may_see(request), "may_enable": request.user.has_perm(ENABLE)}
        if tool:
            told["address"] = reverse(f"admin:{self.opts.db_table}_see", args=[tool.pk])
        return super().changeform_view(request, object_id, form_url, {**told, **(extra_context or {})})


def link_to_setting(full_name: str) -> str:
    """Where it is enabled, and whether it is."""
    setting = ToolSetting.objects.filter(name=full_name).first()
    if setting is None:
        return "–"
    return link_to(setting._meta.db_table, setting.pk, "enabled" if setting.enabled else "not enabled")
