"""docs/openai.md, held against the code."""

import re
from inspect import getmembers, isclass

import yaml

from conversations.openai_api import errors, schema
from conversations.openai_api.schema import SETTINGS
from nanohost.lib.errors import Problem
from tests.support.hosts import ROOT, Host

PAGE = (ROOT / "docs/openai.md").read_text()


def test_the_page_tells_of_every_error_that_this_api_alone_has():
    told = {
        code: (int(status), meaning)
        for code, status, meaning in re.findall(r"^\| `(\w+)` \| (\d+) \| ([^`].+) \|$", PAGE, re.M)
    }
    kinds = [kind for _, kind in getmembers(errors, isclass) if kind.__module__ == errors.__name__]
    assert told == {kind.code: (kind.status, kind.title) for kind in kinds if issubclass(kind, Problem)}


def test_every_route_is_in_the_document_and_needs_a_key(host: Host):
    with host.client() as api:
        document = yaml.safe_load(api.get(f"{host.address}/api/schema/openai").text)
    (included,) = schema.patterns()
    routes = {re.sub(r"<\w+:(\w+)>", r"{\1}", f"/v1/{route.pattern}") for route in included.url_patterns}
    assert set(document["paths"]) == routes
    assert document["info"]["title"] == SETTINGS["TITLE"]
    for operations in document["paths"].values():
        for operation in operations.values():
            assert operation["security"] == [{"apiKey": []}]
            assert "Scope: " in operation["description"]
