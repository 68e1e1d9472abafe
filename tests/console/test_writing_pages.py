"""Every page and address besides the APIs: what may be written there is a short list, and all else refuses to be."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from django.urls import get_resolver
from django.urls.resolvers import URLPattern, URLResolver

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.embedded(reason="which addresses there are is the same on both shapes"),
]

# Of the APIs, tests of their own hold the lists; of the console, the matrix of roles.
ELSEWHERE = ("admin/", "api/v1/", "v1/")
# Each with the test that says what it takes.
WRITTEN = {
    "chat/embed/<str:prefix>/begin/": "tests/api/test_embeds.py",
    "chat/sign-in/": "tests/console/test_chat.py",
    "chat/sign-out/": "tests/console/test_chat.py",
}
VALUES = {"<uuid:conversation_id>": "01a20f91-e8d6-74c0-ae2d-1ea723cf2363", "<str:token>": "x", "<str:prefix>": "x"}


def routes(resolver: URLResolver, before: str = "") -> Iterator[str]:
    for each in resolver.url_patterns:
        route = before + str(each.pattern)
        if isinstance(each, URLPattern):
            yield route
        elif not route.startswith(ELSEWHERE):
            yield from routes(each, route)


def test_what_is_no_api_is_written_where_the_list_says_and_nowhere_else(admin_client: Client) -> None:
    found = {each for each in routes(get_resolver()) if not each.startswith(ELSEWHERE)}
    assert found >= set(WRITTEN)
    assert len(found) > 12
    for route in found - set(WRITTEN):
        path = route
        for name, value in VALUES.items():
            path = path.replace(name, value)
        for method in ("post", "put", "patch", "delete"):
            answer: Any = getattr(admin_client, method)(f"/{path}", secure=True)
            assert answer.status_code in (301, 302, 404, 405), (method, route, answer.status_code)
