"""E-mail: a mailbox is asked for what is new by IMAP, and answers go out by SMTP, in threads by ``References``.

Who a message is from is what its writer says. Only where the receiving server vouches for it (``authserv_id``) is it
taken for proven; the words of others are untrusted text, also of those who may write.
"""

import email
import email.policy
import hashlib
import imaplib
import re
import smtplib
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from email.message import EmailMessage
from email.utils import formatdate, getaddresses
from typing import Any

from conversations.attachments.parts import SentFile
from conversations.channel_models import MAX_EXTERNAL_ID, MAX_PLATFORM_ID
from conversations.channels import calls, fields
from conversations.channels.base import (
    Capabilities,
    Event,
    Heard,
    InDoubt,
    OutgoingMessage,
    Permanent,
    Platform,
    Retry,
)
from conversations.channels.fields import Setting
from tools.outbound.client import NotFetched, allowed, connect
from tools.readable import readable

# Seconds of one conversation with a server; messages that are taken at a time; bytes of one.
SECONDS, MANY, MAX_BYTES = 25.0, 20, 30 * 1024 * 1024
MAX_TEXT_CHARS = 100_000
READABLE_SECONDS = 5.0

TLS, STARTTLS, PLAIN = "tls", "starttls", "none"
_PORTS = {("imap", TLS): 993, ("imap", STARTTLS): 143, ("imap", PLAIN): 143}
_PORTS |= {("smtp", TLS): 465, ("smtp", STARTTLS): 587, ("smtp", PLAIN): 25}

_VALIDITY, _FOLLOWING = re.compile(rb"UIDVALIDITY (\d{1,12})"), re.compile(rb"UIDNEXT (\d{1,12})")
_SIZE = re.compile(rb"RFC822\.SIZE (\d{1,12})")
_MESSAGE_ID = re.compile(r"<[^<>\s]{1,900}>")


class Mail(Platform):
    """A mailbox."""

    kind, title = "email", "E-mail"
    # A receiver's mailbox knows a message by its Message-ID, the same at each attempt.
    capabilities = Capabilities(text_limit=100_000, tells_duplicates=True, files=True)
    fields = (
        Setting(name="address", words="the agent's address", check=fields.text, is_needed=True),
        Setting(name="user", words="who signs in; the address, if this is empty", check=fields.text),
        Setting(name="password", words="the variable that has the password", check=fields.secret, is_needed=True),
        Setting(name="imap_host", words="the server of the mailbox", check=fields.host, is_needed=True),
        Setting(name="imap_port", words="its port", check=fields.port),
        Setting(name="smtp_host", words="the server that takes what goes out", check=fields.host, is_needed=True),
        Setting(name="smtp_port", words="its port", check=fields.port),
        Setting(
            name="security",
            words="how the connections are secured",
            check=fields.one_of(TLS, STARTTLS, PLAIN),
            default=TLS,
        ),
        Setting(name="mailbox", words="the folder that is read", check=fields.text, default="INBOX"),
        Setting(name="every", words="seconds between two looks", check=fields.seconds(2, 3600), default=30),
        Setting(
            name="authserv_id",
            words="the name by which the receiving server signs its Authentication-Results",
            check=fields.host,
        ),
    )

    @classmethod
    def has_to_be_asked(cls, settings: Mapping[str, Any]) -> bool:
        return True

    # --- in ----------------------------------------------------------------------------------------------------------

    def ask(self, cursor: Mapping[str, Any]) -> Heard:
        """Messages that came since; each look ends at once, and the next comes after ``every`` seconds."""
        with self._mailbox() as box:
            validity, next_uid = self._select(box)
            if cursor.get("validity") != validity:  # a mailbox made anew numbers its messages anew
                return Heard(events=(), cursor={"validity": validity, "next": next_uid}, pause=self.setting("every"))
            first = int(cursor["next"])
            _, found = box.uid("SEARCH", f"UID {first}:*")
            # The last message matches n:* whatever n is.
            uids = sorted(uid for uid in map(int, (found[0] or b"").split()) if uid >= first)
            events = [event for uid in uids[:MANY] for event in self._message(box, uid, validity)]
            then = uids[MANY - 1] + 1 if len(uids) > MANY else max([*uids, first - 1]) + 1
            pause = 0 if len(uids) > MANY else self.setting("every")
            return Heard(events=events, cursor={"validity": validity, "next": then}, pause=pause)

    def _select(self, box: imaplib.IMAP4) -> tuple[str, int]:
        """The number of the mailbox's making, and the one that its next message has."""
        mailbox = self.setting("mailbox").replace("\\", "\\\\").replace('"', '\\"')
        answer, _ = box.select(f'"{mailbox}"', readonly=True)
        if answer != "OK":
            raise Permanent(f"The folder {self.setting('mailbox')} cannot be opened")
        _, told = box.status(f'"{mailbox}"', "(UIDVALIDITY UIDNEXT)")
        validity, following = (each.search(told[0] or b"") for each in (_VALIDITY, _FOLLOWING))
        if not (validity and following):
            raise Retry("The mail server does not say how it numbers messages")
        return validity[1].decode(), int(following[1])

    def _message(self, box: imaplib.IMAP4, uid: int, validity: str) -> Iterator[Event]:
        """The event that a message is, unless a program has sent it."""
        _, sized = box.uid("FETCH", str(uid), "(RFC822.SIZE)")
        size = _SIZE.search(b" ".join(each for each in sized if isinstance(each, bytes)))
        part = "(BODY.PEEK[])" if size and int(size[1]) <= MAX_BYTES else "(BODY.PEEK[]<0.200000>)"
        _, got = box.uid("FETCH", str(uid), part)
        raw = next((each[1] for each in got if isinstance(each, tuple)), None)
        if raw is None:  # it is gone meanwhile
            return
        message = email.message_from_bytes(raw, _class=EmailMessage, policy=email.policy.default)
        event = self._event(message, f"{validity}:{uid}")
        if event:
            yield event

    def _event(self, message: EmailMessage, number: str) -> Event | None:
        names = getaddresses([_header(message, "From")])
        name, sender = names[0] if len(names) == 1 else ("", "")
        sender = sender.strip().lower()
        if "@" not in sender or len(sender) > MAX_PLATFORM_ID or not sender.isprintable() or _is_automatic(message):
            return None
        if sender == self.setting("address").lower():
            return None
        own = _ids(_header(message, "Message-ID"))[:1]
        earlier = [*_ids(_header(message, "References")), *_ids(_header(message, "In-Reply-To"))]
        message_id = own[0] if own else f"<{number}@unknown>"
        text, files = _content(message)
        title = " ".join(_header(message, "Subject").split())[:200]
        if not text.strip() and not files:
            text = title or "(This e-mail is empty.)"
        return Event(
            external_id=_bounded(message_id, MAX_EXTERNAL_ID),
            chat_id=sender,
            thread=_bounded(earlier[0] if earlier else message_id, MAX_PLATFORM_ID),
            sender_id=sender,
            sender_name=name,
            message_id=_bounded(message_id, MAX_EXTERNAL_ID),
            title=title,
            text=text,
            files=files,
            is_proven=self._is_proven(message, sender),
        )

    def _is_proven(self, message: EmailMessage, sender: str) -> bool:
        """Whether the receiving server says that the domain in From has sent it (RFC 8601, DMARC)."""
        server = self.setting("authserv_id").lower()
        # The receiving server's stands on top, and it takes off those that others wrote in its name.
        for told in message.get_all("Authentication-Results", [])[:1] if server else ():
            named, *results = " ".join(str(told).lower().split()).split(";")
            if named.split() and named.split()[0] == server:
                domain = sender.rpartition("@")[2]
                words = [each.split() for each in results]
                return any(each[:1] == ["dmarc=pass"] and f"header.from={domain}" in each for each in words if each)
        return False

    @contextmanager
    def _mailbox(self) -> Iterator[imaplib.IMAP4]:
        security = self.setting("security")
        try:
            box = _Imap(*self._server("imap"), security)
            try:
                if security == STARTTLS:
                    box.starttls(ssl.create_default_context())
                box.login(self.setting("user") or self.setting("address"), self.secret("password"))
                yield box
            finally:
                with suppress(OSError, imaplib.IMAP4.error):
                    box.shutdown()
        except NotFetched as error:
            raise calls.once_more(calls.failure_of(error)) from None
        except imaplib.IMAP4.abort as error:
            raise Retry(f"The mail server broke off: {_words(error)}") from None
        except imaplib.IMAP4.error as error:
            # A wrong password, or a server that refuses for now: nothing tells them apart.
            raise Retry(f"The mail server refuses: {_words(error)}", after=60.0) from None
        except (OSError, ValueError) as error:
            raise Retry(f"The mail server is not reached: {_words(error)}") from None

    # --- out ---------------------------------------------------------------------------------------------------------

    def send(self, message: OutgoingMessage, key: str) -> str:
        address = self.setting("address")
        made = EmailMessage(policy=email.policy.SMTP)
        message_id = f"<{key}@{address.rpartition('@')[2] or 'localhost'}>"
        made["From"], made["To"], made["Message-ID"], made["Date"] = address, message.chat_id, message_id, formatdate()
        title = message.title or "Your message"
        made["Subject"] = title if title.lower().startswith("re:") else f"Re: {title}"
        earlier = [each for each in (message.thread, message.in_reply_to) if _MESSAGE_ID.fullmatch(each)]
        if earlier:
            made["In-Reply-To"], made["References"] = earlier[-1], " ".join(dict.fromkeys(earlier))
        made["Auto-Submitted"] = "auto-replied"
        made.set_content(message.text)
        if message.file:
            main, _, sub = calls.type_of(message.file).partition("/")
            made.add_attachment(message.file.data, maintype=main, subtype=sub, filename=message.file.name)
        self._hand_over(made, message.chat_id)
        return message_id

    def send_file(self, message: OutgoingMessage, key: str) -> str:
        return self.send(message, key)

    def _hand_over(self, message: EmailMessage, recipient: str) -> None:
        security, is_said, is_taken = self.setting("security"), False, False
        try:
            with _Smtp(*self._server("smtp"), security) as server:
                if security == STARTTLS:
                    server.starttls(context=ssl.create_default_context())
                server.ehlo()
                if server.has_extn("auth"):
                    server.login(self.setting("user") or self.setting("address"), self.secret("password"))
                _judge(*server.mail(self.setting("address")))
                _judge(*server.rcpt(recipient))
                is_said = True
                _judge(*server.data(message.as_bytes()))
                is_taken = True
        except NotFetched as error:
            raise calls.once_more(calls.failure_of(error)) from None
        except (OSError, smtplib.SMTPException) as error:
            if is_taken:  # whatever goes wrong behind the server's yes
                return
            if isinstance(error, smtplib.SMTPResponseException):
                raise _failure(error.smtp_code, error.smtp_error) from None
            told = f"The mail server broke off: {_words(error)}"
            raise (InDoubt if is_said else Retry)(told) from None

    def _server(self, protocol: str) -> tuple[str, int]:
        port = self.setting(f"{protocol}_port") or _PORTS[protocol, self.setting("security")]
        return self.setting(f"{protocol}_host"), port


def _connection(host: str, port: int, security: str) -> socket.socket:
    """A connection by the rules of outbound requests; the ports of mail are open besides those of the settings."""
    policy = allowed()
    connection = connect(host, port, policy=replace(policy, ports=policy.ports | {*_PORTS.values()}), seconds=SECONDS)
    connection.settimeout(SECONDS)
    if security != TLS:
        return connection
    try:
        return ssl.create_default_context().wrap_socket(connection, server_hostname=host)
    except BaseException:
        connection.close()
        raise


class _Imap(imaplib.IMAP4):
    """Over a connection that was checked."""

    def __init__(self, host: str, port: int, security: str) -> None:
        self._security = security
        super().__init__(host, port, timeout=SECONDS)

    def _create_socket(self, timeout: float | None) -> socket.socket:
        return _connection(self.host, self.port, self._security)


class _Smtp(smtplib.SMTP):
    """Over a connection that was checked."""

    def __init__(self, host: str, port: int, security: str) -> None:
        self._security = security
        super().__init__(host, port, local_hostname="localhost", timeout=SECONDS)

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        return _connection(host, port, self._security)


def _judge(code: int, answer: bytes) -> None:
    if not 200 <= code < 300:
        raise _failure(code, answer)


def _failure(code: int, answer: bytes | str) -> Exception:
    words = answer.decode(errors="replace") if isinstance(answer, bytes) else answer
    told = f"The mail server answered {code}: {words[:300]}"
    return Permanent(told, status=code) if code >= 500 else Retry(told, status=code)


def _words(error: BaseException) -> str:
    said = error.args[0] if error.args else type(error).__name__
    return (said.decode(errors="replace") if isinstance(said, bytes) else str(error) or type(error).__name__)[:300]


# --- reading a message, which may be anything ---------------------------------------------------------------------


def _header(message: EmailMessage, name: str) -> str:
    """A header's text; empty if there is none, or it cannot be read."""
    try:
        return str(message.get(name, ""))[:20_000]
    except Exception:  # the package's parser stumbles over some
        return ""


def _ids(header: str) -> list[str]:
    return _MESSAGE_ID.findall(header)


def _bounded(message_id: str, most: int) -> str:
    """An id as it is, or its hash, where it is longer than ids that are kept."""
    return message_id if len(message_id) <= most and message_id.isprintable() else _hash(message_id)


def _hash(message_id: str) -> str:
    return f"sha256:{hashlib.sha256(message_id.encode(errors='replace')).hexdigest()}"


def _is_automatic(message: EmailMessage) -> bool:
    """Whether a program has sent it (RFC 3834), whom an answer would answer in turn, or a list."""
    if _header(message, "Auto-Submitted").strip().lower() not in ("", "no"):
        return True
    if _header(message, "Precedence").strip().lower() in ("bulk", "list", "junk"):
        return True
    return bool(_header(message, "List-Id")) or _header(message, "Return-Path").strip() == "<>"


def _content(message: EmailMessage) -> tuple[str, Sequence[SentFile]]:
    """Its text, of HTML if there is no other, and its files."""
    plain: list[str] = []
    pages: list[str] = []
    files: list[SentFile] = []
    size = 0
    for part in message.walk():
        if part.is_multipart():
            continue
        name = _name_of(part)
        kind = part.get_content_type()
        if kind in ("text/plain", "text/html") and part.get_content_disposition() != "attachment":
            (plain if kind == "text/plain" else pages).append(_text_of(part))
        elif len(files) < calls.MAX_FILES:
            data = part.get_payload(decode=True)
            if isinstance(data, bytes) and data and (size := size + len(data)) <= calls.MAX_FILE_BYTES:
                files.append(SentFile(name=name or "file", data=data))
    text = "\n\n".join(each.strip() for each in plain if each.strip())
    if not text and pages:
        text = readable("\n".join(pages)[:500_000], seconds=READABLE_SECONDS) or ""
    return text[:MAX_TEXT_CHARS].replace("\x00", ""), files


def _name_of(part: Any) -> str:
    try:
        return (part.get_filename() or "")[:100]
    except Exception:  # as above
        return ""


def _text_of(part: Any) -> str:
    try:
        data = part.get_payload(decode=True) or b""
        text: str = data.decode(part.get_content_charset("utf-8"), errors="replace")
    except (LookupError, UnicodeError, ValueError):
        text = data.decode("utf-8", errors="replace")
    return text.encode("utf-8", "replace").decode().replace("\r\n", "\n")
