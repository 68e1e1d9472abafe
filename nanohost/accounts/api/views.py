"""The API of keys, for keys with the scope ``admin``."""

from typing import Any, ClassVar

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from drf_spectacular.utils import extend_schema
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from nanohost.accounts import keys
from nanohost.accounts.api import serializers as shapes
from nanohost.accounts.models import ApiKey, Scope
from nanohost.lib.api import NewestFirst, checked, problems
from nanohost.lib.errors import InvalidRequest, NotFound
from nanohost.lib.text import UNSTORABLE

# What the API calls the fields of a key, where that is something else.
_NAMES = {"agent_names": "agents", "model_names": "models", "allowed_origins": "allowedOrigins"}
_NAMES |= {"expires_at": "expiresAt"}


def _key(prefix: str) -> ApiKey:
    if not UNSTORABLE.search(prefix):
        key: ApiKey | None = ApiKey.objects.select_related("owner").filter(prefix=prefix).first()
        if key:
            return key
    raise NotFound("There is no key with that prefix.")


def _invalid(error: ValidationError) -> InvalidRequest:
    by_field = {_NAMES.get(name, name): said for name, said in error.message_dict.items()}
    said = "; ".join(f"{name}: {' '.join(each)}" for name, each in by_field.items())
    return InvalidRequest(said, errors=by_field)


class KeyList(ListAPIView[ApiKey]):
    """Keys, everybody's."""

    scopes: ClassVar = {"GET": (Scope.ADMIN,), "POST": (Scope.ADMIN,)}
    serializer_class = shapes.KeyView
    pagination_class = NewestFirst
    queryset = ApiKey.objects.select_related("owner")

    @extend_schema(operation_id="listKeys", responses={200: shapes.KeyView(many=True), **problems()})
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Keys without their texts, the newest first."""
        return super().get(request, *args, **kwargs)

    @extend_schema(operation_id="createKey", request=shapes.NewKey, responses={201: shapes.KeyMade, **problems()})
    def post(self, request: Request) -> Response:
        """Make a key. The answer has its text, which is shown this once."""
        wanted = checked(shapes.NewKey, request)
        name = wanted.pop("owner", None)
        owner: Any = request.user
        if name is not None:
            owner = get_user_model().objects.filter(username=name, is_active=True).first()
            if owner is None:
                raise InvalidRequest(f"owner: There is no active user named {name!r}.")
        try:
            made, text = keys.make(owner=owner, **wanted)
        except ValidationError as error:
            raise _invalid(error) from None
        told = shapes.KeyView(made).data | {"key": text}
        return Response(told, status=201, headers={"Location": f"/api/v1/keys/{made.prefix}"})


class KeyDetail(APIView):
    """One key."""

    scopes: ClassVar = {"GET": (Scope.ADMIN,), "PATCH": (Scope.ADMIN,), "DELETE": (Scope.ADMIN,)}

    @extend_schema(operation_id="getKey", responses={200: shapes.KeyView, **problems(404)})
    def get(self, request: Request, prefix: str) -> Response:
        return Response(shapes.KeyView(_key(prefix)).data)

    @extend_schema(
        operation_id="changeKey", request=shapes.KeyChanges, responses={200: shapes.KeyView, **problems(404)}
    )
    def patch(self, request: Request, prefix: str) -> Response:
        """Change what it may do, from the next request on."""
        key = _key(prefix)
        try:
            changed = keys.change(key, **checked(shapes.KeyChanges, request))
        except ValidationError as error:
            raise _invalid(error) from None
        return Response(shapes.KeyView(changed).data)

    @extend_schema(operation_id="revokeKey", responses={204: None, **problems(404)})
    def delete(self, request: Request, prefix: str) -> Response:
        """Refuse it from now on. It stays listed, so that what it did can still be traced."""
        keys.revoke(_key(prefix))
        return Response(status=204)
