"""The API of files: those of the caller's workspace with an agent, which its tools work with."""

import base64
import binascii
from datetime import UTC, datetime
from typing import Any, ClassVar

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from memory.api.views import OfAgent
from nanohost.accounts.models import Scope
from nanohost.lib import downloads
from nanohost.lib.api import Strict, Text, checked, owner_of, problems
from nanohost.lib.errors import InvalidRequest
from tools.workspace import people
from tools.workspace.store import Entry

# The specification's names.
# ruff: noqa: N815


class FileIn(Strict):
    """Body of PUT /agents/{agent}/files/{path}: a text, or any bytes in Base64."""

    content = Text(required=False, allow_blank=True, help_text="The whole file, as a text; it is stored in UTF-8.")
    base64 = Text(required=False, allow_blank=True, help_text="The whole file, in Base64, in the place of a text.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if len(attrs) != 1:
            raise serializers.ValidationError("Name content (a text) or base64 (any bytes), and not both.")
        return attrs


class FilePut(serializers.Serializer[Any]):
    path = serializers.CharField()
    bytes = serializers.IntegerField()
    replaced = serializers.BooleanField(help_text="Whether there was a file, which is kept for a day.")


class FileView(serializers.Serializer[Any]):
    path = serializers.CharField(help_text="From the workspace's folder on.")
    kind = serializers.ChoiceField(
        ["file", "folder", "other"],
        help_text="other: a link, or something else that is not a regular file; it cannot be downloaded.",
    )
    bytes = serializers.IntegerField(help_text="Of a file; else 0.")
    changedAt = serializers.DateTimeField()


class FileList(OfAgent):
    """What is in a folder of a workspace."""

    scopes: ClassVar = {"GET": (Scope.READ,)}

    @extend_schema(
        operation_id="listFiles",
        parameters=[OpenApiParameter("path", str, description="The folder; the workspace's own if missing.")],
        responses={200: FileView(many=True), **problems(404)},
    )
    def get(self, request: Request, agent: str) -> Response:
        """The files and folders in one folder of your workspace with an agent, by name."""
        path = request.query_params.get("path", "")
        found = people.list_folder(agent=self.known(agent), owner_id=owner_of(request), path=path)
        return Response([_shown(entry) for entry in found])


class FileDetail(OfAgent):
    """A file of a workspace."""

    scopes: ClassVar = {"GET": (Scope.READ,), "PUT": (Scope.CHAT,), "DELETE": (Scope.CHAT,)}

    @extend_schema(
        operation_id="getFile",
        responses={(200, downloads.BYTES): OpenApiTypes.BINARY, **problems(404, 422)},
    )
    def get(self, request: Request, agent: str, path: str) -> HttpResponse:
        """The file, as a download that no browser shows or runs."""
        content = people.read(agent=self.known(agent), owner_id=owner_of(request), path=path)
        return downloads.download(content, path.rpartition("/")[2])

    @extend_schema(operation_id="putFile", request=FileIn, responses={200: FilePut, 201: FilePut, **problems(404, 422)})
    def put(self, request: Request, agent: str, path: str) -> Response:
        """Write a file, at once or not at all, and the folders it is in. What was there before is kept for a day.

        What you put there is untrusted for the agent, as all that it has not written itself.
        """
        known = self.known(agent)
        content = _content(checked(FileIn, request))
        replaced = people.put(agent=known, owner_id=owner_of(request), path=path, content=content)
        answer = {"path": path, "bytes": len(content), "replaced": replaced}
        return Response(answer, status=200 if replaced else 201)

    @extend_schema(operation_id="deleteFile", responses={204: None, **problems(404, 409)})
    def delete(self, request: Request, agent: str, path: str) -> Response:
        """Delete a file. It is kept for a day, for who undoes it."""
        people.delete(agent=self.known(agent), owner_id=owner_of(request), path=path)
        return Response(status=204)


def _content(given: dict[str, str]) -> bytes:
    if "content" in given:
        return given["content"].encode()
    try:
        return base64.b64decode(given["base64"], validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("base64 is not valid Base64 (RFC 4648, with its padding).") from None


def _shown(entry: Entry) -> dict[str, Any]:
    changed = datetime.fromtimestamp(entry.changed, UTC)
    return {"path": entry.path, "kind": entry.kind, "bytes": entry.size, "changedAt": changed}
