"""A small provider of OpenID Connect on loopback: it checks what a host sends as strictly as a real one does, and lies
in its ID tokens where it is told to."""

import base64
import hashlib
import json
import secrets
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

CLIENT, SECRET = "the-host", "of the host, at its provider"


class OidcProvider:
    """``person``: what the next ID token says of whoever signs in. ``lies``: claims that replace its own; None
    leaves one out. ``signed_by`` and ``algorithm``: what it is signed with. ``user_info``: what its user info says.
    ``configured``: replaces parts of its configuration."""

    def __init__(self) -> None:
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.another_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.asked: list[str] = []
        self.codes: dict[str, dict[str, str]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.issuer = f"http://127.0.0.1:{self._server.server_port}/realm"
        self.reset()
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def reset(self) -> None:
        """As before anybody told it to lie."""
        self.person: dict[str, Any] = {}
        self.lies: dict[str, Any] = {}
        self.signed_by: RSAPrivateKey | str | None = self.key
        self.algorithm = "RS256"
        self.user_info: dict[str, Any] = {}
        self.configured: dict[str, Any] = {}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def agree(self, address: str, **person: Any) -> str:
        """Somebody agrees at the authorization endpoint: the query that their browser is sent back with."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        assert asked["client_id"] == CLIENT
        assert (asked["response_type"], asked["code_challenge_method"]) == ("code", "S256")
        self.person = person
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        return f"code={code}&state={asked['state']}"

    def _configuration(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "userinfo_endpoint": f"{self.issuer}/userinfo",
            "jwks_uri": f"{self.issuer}/keys",
            "token_endpoint_auth_methods_supported": ["client_secret_post"],
        } | self.configured

    def keys_told(self) -> dict[str, Any]:
        public = jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return {"keys": [public | {"kid": "one", "use": "sig", "alg": "RS256"}]}

    def tokens_for(self, form: dict[str, str]) -> dict[str, Any] | None:
        asked = self.codes.pop(form.get("code", ""), None)  # good once
        verifier = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(verifier).rstrip(b"=").decode()
        if (
            asked is None
            or (form.get("client_id"), form.get("client_secret")) != (CLIENT, SECRET)
            or form.get("redirect_uri") != asked["redirect_uri"]
            or challenge != asked["code_challenge"]
        ):
            return None
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": CLIENT, "iat": now, "exp": now + 300, "nonce": asked.get("nonce")}
        claims = {name: value for name, value in (claims | self.person | self.lies).items() if value is not None}
        token = jwt.encode(claims, self.signed_by, algorithm=self.algorithm, headers={"kid": "one"})
        return {"access_token": "an access token", "token_type": "Bearer", "id_token": token}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.asked.append(self.path)
                found = {
                    "/realm/.well-known/openid-configuration": provider._configuration,
                    "/realm/keys": provider.keys_told,
                    "/realm/userinfo": lambda: provider.user_info,
                }.get(self.path)
                self._say(200 if found else 404, found() if found else {})

            def do_POST(self) -> None:
                provider.asked.append(self.path)
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                found = provider.tokens_for({name: values[0] for name, values in parse_qs(body).items()})
                self._say(200 if found else 400, found or {"error": "invalid_grant"})

            def _say(self, status: int, said: dict[str, Any]) -> None:
                content = json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Nothing: the tests ask ``asked``."""

        return Handler
