"""Signing in by OpenID Connect: the authorization code flow of django-allauth, with what it leaves out.

Loaded only where the settings name a provider (``OIDC_ISSUER``). Of allauth's pages none is there: two addresses of
ours lead to its flow and back. Beyond what it does, the ID token is bound to its sign-in by a nonce, its signature is
verified by the provider's keys, and all requests to the provider go by the guarded client of outbound requests.

Somebody is known by issuer and subject, never by a name or an e-mail address, which a provider may give to another.
Roles are those of the groups that the provider tells, at each sign-in anew.
"""

import json
import logging
import secrets
from base64 import b64encode
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, NoReturn, Self
from urllib.parse import urlencode, urlsplit

import jwt
from allauth.core import context as allauth_context
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.models import SocialApp, SocialLogin
from allauth.socialaccount.providers.base.constants import AuthProcess
from allauth.socialaccount.providers.oauth2.client import OAuth2Error
from allauth.socialaccount.providers.oauth2.views import OAuth2CallbackView
from allauth.socialaccount.providers.openid_connect.provider import OpenIDConnectProvider
from allauth.socialaccount.providers.openid_connect.views import OpenIDConnectOAuth2Adapter
from django.conf import settings
from django.contrib import admin
from django.contrib.auth import login
from django.contrib.auth.models import Group, User
from django.db import IntegrityError, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import path, reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from nanohost.accounts import audit
from nanohost.console.roles import ROLES
from nanohost.lib.locality import address_of
from tools.outbound import addresses, client

logger = logging.getLogger(__name__)

# A provider has so many seconds for each answer, which may be so many bytes.
SECONDS, MOST = 10.0, 512 * 1024

# Signatures that only a provider can make; none that its clients' secret would do for.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")

# Seconds that the clocks of two machines may differ.
LEEWAY = 60

# What tokens say of whom is kept by nobody for longer than a sign-in takes.
MAX_SUBJECT, MAX_GROUPS = 191, 1000

BACKEND = "django.contrib.auth.backends.ModelBackend"


class Refused(OAuth2Error):  # type: ignore[misc]  # allauth is untyped
    """The provider has said what it must not say; the text is for the log."""


# --- requests to the provider ------------------------------------------------------------------------------------


class Session:
    """What allauth asks a provider by, as ``requests.Session`` would; each request is a guarded one."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing stays open."""

    def get(self, url: str, headers: Mapping[str, str] | None = None) -> "Answer":
        return self.request("GET", url, headers=headers)

    def request(
        self,
        method: str,
        url: str,
        *,
        params: Mapping[str, str] | None = None,
        data: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        auth: Any = None,
    ) -> "Answer":
        """Raises :class:`Refused` for whatever cannot be fetched."""
        if not url.startswith("https://") and settings.OIDC_ISSUER.startswith("https://"):
            raise Refused("an endpoint without TLS")
        sent = {"Accept": "application/json", **(headers or {})}
        if data:
            sent["Content-Type"] = "application/x-www-form-urlencoded"
        if auth:
            pair = f"{auth.username}:{auth.password}"
            sent["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        asked = f"{url}?{urlencode(params)}" if params else url
        body = urlencode(data).encode() if data else b""
        try:
            found = client.fetch(
                asked, policy=_policy(), method=method, headers=sent, body=body, seconds=SECONDS, most=MOST
            )
        except client.NotFetched as error:
            raise Refused(error.rule) from error
        return Answer(found)


class Answer:
    """What came back, as allauth reads it."""

    def __init__(self, found: client.Answer) -> None:
        self.status_code, self.headers, self.content = found.status, found.headers, found.body
        self.headers.setdefault("content-type", "")

    @property
    def text(self) -> str:
        return self.content.decode(errors="replace")

    def raise_for_status(self) -> None:
        if self.status_code >= 400:
            raise Refused(f"status {self.status_code}")

    def json(self) -> dict[str, Any]:
        """An object, and nothing else."""
        try:
            said = json.loads(self.content)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            raise Refused("an answer that is no JSON object")
        return said


def _policy() -> addresses.Policy:
    """Public addresses, and private networks that the settings name for the provider."""
    port = urlsplit(settings.OIDC_ISSUER).port
    return addresses.policy_of(private_cidrs=settings.OIDC_PRIVATE_CIDRS, ports=["443", *([str(port)] if port else [])])


# --- allauth's flow ----------------------------------------------------------------------------------------------


class Flow(OpenIDConnectOAuth2Adapter):  # type: ignore[misc]  # allauth is untyped
    """Of one sign-in: where the provider's endpoints are, and what its ID token says."""

    # Of the state of this sign-in; set once that is found.
    nonce = ""

    @property
    def openid_config(self) -> dict[str, Any]:
        found: dict[str, Any] = super().openid_config
        if found.get("issuer") != settings.OIDC_ISSUER:
            raise Refused("a configuration of another issuer")
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            if not isinstance(found.get(name), str):
                raise Refused(f"no {name}")
        return found

    def get_callback_url(self, request: HttpRequest, app: SocialApp) -> str:
        where = reverse("single_sign_on_callback")
        return f"{settings.PUBLIC_URL}{where}" if settings.PUBLIC_URL else request.build_absolute_uri(where)

    def get_access_token_data(self, *args: Any, **options: Any) -> dict[str, Any]:
        """Nothing but the ID token, and what the user's own claims are asked by."""
        said = super().get_access_token_data(*args, **options)
        if not all(isinstance(said.get(name), str) for name in ("access_token", "id_token")):
            raise Refused("no tokens")
        return {name: said[name] for name in ("access_token", "id_token")}

    def complete_login(self, request: HttpRequest, app: SocialApp, token: Any, **told: Any) -> SocialLogin:
        claims = self._claims(told["response"]["id_token"])
        if settings.OIDC_GROUPS_CLAIM not in claims and self.openid_config.get("userinfo_endpoint"):
            more = self._fetch_user_info(token.token)
            if more.get("sub") != claims["sub"]:
                raise Refused("claims of another subject")
            claims = more | claims
        return self.get_provider().sociallogin_from_response(request, {"id_token": claims})

    def _claims(self, id_token: str) -> dict[str, Any]:
        """What an ID token says, once it is known to be the provider's, for this host and for this sign-in."""
        with Session() as session:
            answer = session.get(self.openid_config["jwks_uri"])
            answer.raise_for_status()
        try:
            name = jwt.get_unverified_header(id_token).get("kid")
            keys = [key for key in jwt.PyJWKSet.from_dict(answer.json()).keys if key.public_key_use in (None, "sig")]
            fitting = [key for key in keys if name is None or key.key_id == name]
            if len(fitting) != 1 or fitting[0].algorithm_name not in ALGORITHMS:
                raise Refused("no key that the ID token is signed with")
            claims: dict[str, Any] = jwt.decode(
                id_token,
                fitting[0],
                algorithms=[fitting[0].algorithm_name],
                audience=settings.OIDC_CLIENT_ID,
                issuer=settings.OIDC_ISSUER,
                leeway=LEEWAY,
                options={"require": ["exp", "iat", "iss", "aud", "sub", "nonce"]},
            )
        except (jwt.PyJWTError, ValueError, TypeError, KeyError) as error:
            raise Refused(f"an ID token that is not valid: {type(error).__name__}") from error
        nonce = claims["nonce"]
        if not (isinstance(nonce, str) and self.nonce and secrets.compare_digest(nonce.encode(), self.nonce.encode())):
            raise Refused("an ID token of another sign-in")
        if isinstance(claims["aud"], list) and claims.get("azp", settings.OIDC_CLIENT_ID) != settings.OIDC_CLIENT_ID:
            raise Refused("an ID token for another client")
        if not 0 < len(claims["sub"]) <= MAX_SUBJECT:
            raise Refused("a subject that is too long, or none")
        return claims


class Provider(OpenIDConnectProvider):  # type: ignore[misc]  # allauth is untyped
    """The one provider there is."""

    oauth2_adapter_class = Flow

    def redirect(self, request: HttpRequest, process: str, next_url: str | None = None, **more: Any) -> HttpResponse:
        """To the provider, with a nonce that this sign-in's state keeps."""
        nonce = secrets.token_urlsafe(32)
        answer: HttpResponse = super().redirect(
            request, process, next_url=next_url, auth_params={"nonce": nonce}, nonce=nonce, **more
        )
        return answer

    def extract_uid(self, data: dict[str, Any]) -> str:
        return str(data["id_token"]["sub"])

    def extract_common_fields(self, data: dict[str, Any]) -> dict[str, Any]:
        """A user is made by this host's own rules."""
        return {}

    def extract_email_addresses(self, data: dict[str, Any]) -> list[Any]:
        """By an address, nobody is known."""
        return []

    def extract_extra_data(self, data: dict[str, Any]) -> dict[str, Any]:
        """Of all that the provider says of somebody, what this sign-in needs."""
        claims = data["id_token"]
        groups = claims.get(settings.OIDC_GROUPS_CLAIM, [])
        groups = [groups] if isinstance(groups, str) else groups if isinstance(groups, list) else []
        told = {name: claims.get(name) for name in ("preferred_username", "email", "given_name", "family_name")}
        texts = {name: text[:150] for name, text in told.items() if isinstance(text, str)}
        return texts | {"groups": [each for each in groups[:MAX_GROUPS] if isinstance(each, str)]}


class Adapter(DefaultSocialAccountAdapter):  # type: ignore[misc]  # allauth is untyped
    """Where allauth's flow meets this host: it ends before allauth would sign anybody in or up."""

    def get_provider(self, request: HttpRequest, provider: str = "", client_id: str | None = None) -> Provider:
        """Made of the settings; no row names another. Accounts are told apart by its issuer."""
        app = SocialApp(
            provider=OpenIDConnectProvider.id,
            provider_id=settings.OIDC_ISSUER,
            name=settings.OIDC_NAME,
            client_id=settings.OIDC_CLIENT_ID,
            secret=settings.OIDC_CLIENT_SECRET,
            settings={
                "server_url": settings.OIDC_ISSUER.rstrip("/"),
                "oauth_pkce_enabled": True,
                "scope": settings.OIDC_SCOPES,
            },
        )
        return Provider(request, app=app)

    def get_requests_session(self) -> Session:
        return Session()

    def is_open_for_signup(self, request: HttpRequest, sociallogin: SocialLogin) -> bool:
        return False

    def pre_social_login(self, request: HttpRequest, sociallogin: SocialLogin) -> NoReturn:
        raise ImmediateHttpResponse(_let_in(request, sociallogin))

    def on_authentication_error(
        self, request: HttpRequest, provider: Any, error: Any = None, exception: Any = None, extra_context: Any = None
    ) -> NoReturn:
        raise ImmediateHttpResponse(_refused(request, str(exception or error or "no such sign-in has begun")))


class Callback(OAuth2CallbackView):  # type: ignore[misc]  # allauth is untyped
    """Where the provider sends people back to."""

    def _get_state(self, request: HttpRequest, provider: Provider) -> Any:
        state, answer = super()._get_state(request, provider)
        self.adapter.nonce = (state or {}).get("nonce", "")
        return state, answer


# --- who comes in ------------------------------------------------------------------------------------------------


def roles_of(groups: Iterable[str]) -> set[str]:
    """The roles that ``OIDC_ROLES`` gives to these groups; ``chat`` is one without a page of the console."""
    told = {*groups, "*"}
    return {role for group, role in settings.OIDC_ROLES if group in told}


def _let_in(request: HttpRequest, sociallogin: SocialLogin) -> HttpResponse:
    """Sign somebody in whom the provider has told of; with the roles of their groups as these are now."""
    told = sociallogin.account.extra_data
    roles = roles_of(told["groups"])
    try:
        with transaction.atomic(), audit.acting("OpenID Connect"):
            user = sociallogin.user if sociallogin.is_existing else None
            if user is None and roles:
                user = _made(sociallogin, told)
            if user is not None:
                _give(user, roles)
    except IntegrityError:
        return _refused(request, "two sign-ins at once")
    if not roles:
        return _refused(request, "no group with a role", user=user)
    assert user is not None
    if not user.is_active:
        return _refused(request, "a user who is deactivated", user=user)
    login(request, user, backend=BACKEND)
    return HttpResponseRedirect(sociallogin.state.get("next") or _first_page(user))


def _first_page(user: User) -> str:
    return reverse("admin:index") if user.is_staff else reverse("chat")


def _made(sociallogin: SocialLogin, told: dict[str, Any]) -> User:
    """A new user; one of that name, who may be anybody, is left alone."""
    wanted = told.get("preferred_username") or told.get("email", "").partition("@")[0]
    base = "".join(each for each in wanted if each.isalnum() or each in ".@+-_")[:100] or "somebody"
    name, number = base, 1
    while User.objects.filter(username=name).exists():
        number += 1
        name = f"{base}-{number}" if number < 100 else f"{base}-{secrets.token_hex(4)}"
    user = User(
        username=User.normalize_username(name),
        email=told.get("email", ""),
        first_name=told.get("given_name", ""),
        last_name=told.get("family_name", ""),
    )
    user.set_unusable_password()
    user.save()
    sociallogin.account.user = user
    sociallogin.account.save()
    return user


def _give(user: User, roles: set[str]) -> None:
    """Exactly these of the roles; groups of the host's own stay."""
    has = set(user.groups.filter(name__in=ROLES).values_list("name", flat=True))
    due = roles & {*ROLES}
    if gone := has - due:
        user.groups.remove(*Group.objects.filter(name__in=gone))
    if new := due - has:
        user.groups.add(*Group.objects.filter(name__in=new))
    if user.is_staff != bool(due):
        user.is_staff = bool(due)
        user.save(update_fields=["is_staff"])


def _refused(request: HttpRequest, why: str, user: User | None = None) -> HttpResponse:
    """The page that says so; the log and the audit log are told why."""
    logger.warning("A sign-in by OpenID Connect failed: %s", why[:200])
    audit.record("sign_in_failed", about=user, by="somebody", after={"address": address_of(request)}, reason=why)
    told = {**admin.site.each_context(request), "title": "Sign-in", "name": settings.OIDC_NAME}
    return render(request, "console/single_sign_on_failed.html", told, status=403)


# --- the two addresses -------------------------------------------------------------------------------------------


@require_GET
@never_cache
def begin(request: HttpRequest) -> HttpResponse:
    """To the provider; ``next``: the page of this host that is wanted."""
    wanted = request.GET.get("next", "")
    if not url_has_allowed_host_and_scheme(wanted, allowed_hosts=None):
        wanted = ""
    with allauth_context.request_context(request):
        try:
            provider = Adapter(request).get_provider(request)
            return provider.redirect(request, AuthProcess.LOGIN, next_url=wanted or None)
        except OAuth2Error as error:
            return _refused(request, str(error))
        except ImmediateHttpResponse as answered:
            answer: HttpResponse = answered.response
            return answer


@require_GET
@never_cache
def callback(request: HttpRequest) -> HttpResponse:
    """Back from the provider."""
    request.allauth = SimpleNamespace()  # type: ignore[attr-defined]  # as allauth's middleware, of all pages
    with allauth_context.request_context(request):
        try:
            answer: HttpResponse = Callback.adapter_view(Flow(request, settings.OIDC_ISSUER))(request)
        except OAuth2Error as error:  # of the configuration, which allauth reads before it catches any
            return _refused(request, str(error))
        return answer


urlpatterns = [
    path("", begin, name="single_sign_on"),
    path("callback/", callback, name="single_sign_on_callback"),
]
