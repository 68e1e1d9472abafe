"""OpenAPI documents, each made once a process: they are the same for whoever asks, and anybody may."""

from functools import cache
from threading import Lock
from typing import Any

from django.http import HttpResponse
from drf_spectacular.renderers import OpenApiJsonRenderer
from drf_spectacular.settings import patched_settings, spectacular_settings
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularJSONAPIView
from rest_framework.request import Request

# Besides that a document is made once: the settings of one are those of the whole process while it is made, and another
# that is made meanwhile would be made by them.
_making = Lock()


class SchemaView(SpectacularJSONAPIView):
    """Serves the document of all routes, or what a subclass makes of them."""

    @extend_schema(exclude=True)
    def get(self, request: Request, *args: Any, **options: Any) -> HttpResponse:
        """The document. Nothing in a request makes it another one."""
        with _making:
            title, document = _made(type(self))  # type: ignore[arg-type]  # mypy takes no class for hashable
        named = {"Content-Disposition": f'inline; filename="{title}.json"'}
        return HttpResponse(document, content_type=OpenApiJsonRenderer.media_type, headers=named)


@cache
def _made(view: type[SchemaView]) -> tuple[str, bytes]:
    """Its title, and itself as JSON. It takes a third of a second."""
    with patched_settings(view.custom_settings):
        document = view.generator_class().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
        return str(spectacular_settings.TITLE), OpenApiJsonRenderer().render(document)


def forget() -> None:
    """For tests: the next who asks has them made anew."""
    _made.cache_clear()
