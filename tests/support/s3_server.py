"""A server of S3's language, on loopback: it keeps objects of one bucket, and holds each request against its signature
(AWS Signature Version 4, as its documents have it; nothing of boto3 is used). Who signs wrongly gets 403."""

import hashlib
import hmac
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

BUCKET, REGION, KEY_ID, KEY = "bucket", "eu-test-1", "AKIDTEST", "canary of the bucket's key"


class S3Server:
    """``objects``: what it keeps, by name. ``is_away``: it answers nothing but 503."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.refused: list[str] = []
        self.is_away = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"s3": self}))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def options(self) -> dict[str, Any]:
        """Of Django's storage, as the settings of the host make them."""
        signed = {"access_key": KEY_ID, "secret_key": KEY, "querystring_auth": True, "default_acl": None}
        return {"bucket_name": BUCKET, "endpoint_url": self.url, "region_name": REGION, **signed}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    s3: S3Server

    def log_message(self, *args: Any) -> None:
        pass

    def handle_expect_100(self) -> bool:
        self.send_response_only(100)
        self.end_headers()
        return True

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.s3.is_away:
            return self._send(503, b"<Error><Code>SlowDown</Code></Error>")
        if wrong := _wrong(self.command, self.path, dict(self.headers.items()), body):
            self.s3.refused.append(wrong)
            return self._send(403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
        bucket, _, name = unquote(urlsplit(self.path).path).lstrip("/").partition("/")
        if bucket != BUCKET or not name:
            return self._send(404, b"<Error><Code>NoSuchBucket</Code></Error>")
        if self.command == "PUT":
            self.s3.objects[name] = (body, self.headers.get("Content-Type", ""))
            return self._send(200, b"", ETag=f'"{hashlib.md5(body).hexdigest()}"')
        if self.command == "DELETE":
            self.s3.objects.pop(name, None)
            return self._send(204, b"")
        if name not in self.s3.objects:
            return self._send(404, b"<Error><Code>NoSuchKey</Code></Error>")
        data, kind = self.s3.objects[name]
        return self._send(200, data, **{"Content-Type": kind, "ETag": f'"{hashlib.md5(data).hexdigest()}"'})

    do_GET = do_HEAD = do_PUT = do_DELETE = _answer  # noqa: N815 -- as http.server has it

    def _send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _wrong(method: str, target: str, headers: dict[str, str], body: bytes) -> str:
    """What is wrong with a request's signature; empty if it is right."""
    lower = {name.lower(): " ".join(value.split()) for name, value in headers.items()}
    scheme, _, rest = lower.get("authorization", "").partition(" ")
    if scheme != "AWS4-HMAC-SHA256":
        return "it is not signed"
    given = dict(each.strip().split("=", 1) for each in rest.split(","))
    key_id, date, region, service, end = given["Credential"].split("/")
    if (key_id, region, service, end) != (KEY_ID, REGION, "s3", "aws4_request"):
        return "another key, region or service"
    hashed = lower.get("x-amz-content-sha256", "")
    if hashed not in (hashlib.sha256(body).hexdigest(), "UNSIGNED-PAYLOAD"):
        return f"the body is not the one that was signed ({hashed})"
    signed = given["SignedHeaders"].split(";")
    if not {"host", "x-amz-date", "x-amz-content-sha256"} <= set(signed):
        return "headers that have to be signed are not"
    path, query = urlsplit(target).path, sorted(parse_qsl(urlsplit(target).query, keep_blank_values=True))
    canonical = "\n".join(
        [
            method,
            path,
            "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in query),
            *(f"{name}:{lower[name]}" for name in signed),
            "",
            ";".join(signed),
            hashed,
        ]
    )
    scope = f"{date}/{region}/{service}/{end}"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    to_sign = f"AWS4-HMAC-SHA256\n{lower['x-amz-date']}\n{scope}\n{digest}"
    key = f"AWS4{KEY}".encode()
    for part in (date, region, service, end):
        key = hmac.digest(key, part.encode(), "sha256")
    right = hmac.digest(key, to_sign.encode(), "sha256").hex()
    return "" if hmac.compare_digest(right, given["Signature"]) else "the signature does not match"
