"""A mail server on loopback, which keeps what it is sent and answers as it is told."""

import asyncio
import email
import email.policy
import threading
from email.message import EmailMessage
from typing import Any

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, Session

TAKEN = "250 Message accepted for delivery"


class MailServer:
    """Takes each message unless it is told otherwise. ``to_recipient``, ``to_message``, ``to_goodbye``: what it answers
    to each. ``password``: what it takes from whoever signs in, if anybody must; ``hangs``: it never answers a
    message."""

    def __init__(self) -> None:
        self.to_recipient = self.to_message = TAKEN
        self.to_goodbye = "221 Bye"
        self.password: bytes | None = None
        self.hangs = False
        # What it answers to the next messages, before it goes on as ever; "reset" ends the connection instead.
        self.answers: list[str] = []
        self.received: list[tuple[str, EmailMessage]] = []
        self._loop = asyncio.new_event_loop()
        made = self._loop.create_server(self._connection, "127.0.0.1", 0)
        self._server = self._loop.run_until_complete(made)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever, name="mail server")
        self._thread.start()

    def use(self, settings: Any) -> None:
        """Have e-mails sent here."""
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", self.port

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._server.close()
        self._loop.close()

    def _connection(self) -> SMTP:
        return SMTP(self, authenticator=self._sign_in, auth_require_tls=False, loop=self._loop)

    def _sign_in(self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, given: Any) -> AuthResult:
        return AuthResult(success=given.password == self.password, handled=False)

    async def handle_RCPT(  # noqa: N802 -- aiosmtpd's name
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: Any
    ) -> str:
        if self.to_recipient == TAKEN:
            envelope.rcpt_tos.append(address)
        return self.to_recipient

    async def handle_QUIT(  # noqa: N802 -- aiosmtpd's name
        self, server: SMTP, session: Session, envelope: Envelope
    ) -> str:
        return self.to_goodbye

    async def handle_DATA(  # noqa: N802 -- aiosmtpd's name
        self, server: SMTP, session: Session, envelope: Envelope
    ) -> str:
        assert isinstance(envelope.content, bytes)
        while self.hangs:
            await asyncio.sleep(0.01)
        if self.answers:
            answer = self.answers.pop(0)
            if answer == "reset":
                server.transport.abort()
            if not answer.startswith("250"):
                return answer
        if self.to_message == TAKEN:
            (recipient,) = envelope.rcpt_tos
            message = email.message_from_bytes(envelope.content, _class=EmailMessage, policy=email.policy.default)
            self.received.append((recipient, message))
        return self.to_message
