"""Two mail servers on loopback."""

from collections.abc import Mapping
from typing import Any, ClassVar

from conversations.channel_models import Channel, Listener
from tests.support.chat_platforms.accounts import SECRETS, TOKEN, hear, make_channel
from tests.support.imap_server import ImapServer
from tests.support.mail_server import MailServer
from tests.support.platforms import Sent
from tests.support.receiver import Says


class MailHouse:
    """Two mail servers: one that keeps a mailbox, and one that takes what goes out."""

    kind: ClassVar[str] = "email"
    tells_duplicates = True
    lacks: ClassVar[Mapping[str, str]] = {
        "edits": "an e-mail is not changed once it is sent",
        "reactions": "there are none",
        "groups": "an e-mail is to whom it is to",
        "late files": "files come with their message",
    }

    def __init__(self, settings: Any) -> None:
        self.box, self.post = ImapServer("agent@example.org", SECRETS[TOKEN]), MailServer()
        self.post.password = SECRETS[TOKEN].encode()
        settings.HTTP_ALLOWED_PRIVATE_CIDRS = ["127.0.0.0/8"]
        settings.HTTP_ALLOWED_PORTS = [str(self.box.port), str(self.post.port)]
        self.own: Channel | None = None

    def close(self) -> None:
        self.box.close()
        self.post.close()

    def channel(self, owner: Any, **values: Any) -> Channel:
        given = {"address": "agent@example.org", "password": TOKEN, "security": "none", "authserv_id": "mx.example.org"}
        given |= {"imap_host": "127.0.0.1", "imap_port": self.box.port}
        given |= {"smtp_host": "127.0.0.1", "smtp_port": self.post.port}
        if "allow_from" in values:
            values["allow_from"] = [f"{each}@example.com" if each == "anna" else each for each in values["allow_from"]]
        self.own = make_channel(owner, self.kind, given, **{"allow_from": ["anna@example.com"]} | values)
        if self.own.is_active:
            hear(self.own)  # what was there before is old
        return self.own

    def mail(self, body: str, **headers: str) -> None:
        """Put a message into the mailbox."""
        given = {
            "From": "Anna <anna@example.com>",
            "To": "agent@example.org",
            "Subject": "The shop",
            "Message-ID": f"<mail-{len(self.box.messages)}@example.com>",
            "Authentication-Results": "mx.example.org; dmarc=pass header.from=example.com",
        }
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in given.items() if value)
        self.box.messages.append(f"{head}\r\n{body}\r\n".encode())
        assert self.own
        hear(self.own)

    def tells(self, text: str, *, sender: str = "anna", chat: str = "42", **headers: str) -> None:
        self.mail(text, **{"From": f"Anna <{sender}@example.com>"} | headers)

    def tells_again(self) -> None:
        assert self.own
        Listener.objects.update(cursor={"validity": "1", "next": 1})
        hear(self.own)

    def tells_in_a_thread(self, text: str) -> str:
        self.mail(text, References="<root@example.com> <between@example.com>", In_Reply_To="<between@example.com>")
        return "<root@example.com>"

    def tells_a_file(self, name: str, data: bytes, text: str = "Read this") -> None:
        parts = f"--b\r\nContent-Type: text/plain\r\n\r\n{text}\r\n"
        parts += f'--b\r\nContent-Type: text/plain\r\nContent-Disposition: attachment; filename="{name}"\r\n\r\n'
        self.mail(
            f"{parts}{data.decode()}\r\n--b--", **{"MIME-Version": "1.0", "Content-Type": "multipart/mixed; boundary=b"}
        )

    def answer(self, *faults: Says) -> None:
        self.post.answers = [_AS_SMTP[each.status] if not each.resets else "reset" for each in faults]

    @property
    def sent(self) -> list[Sent]:
        return [
            Sent(
                kind="message",
                chat_id=recipient,
                text=message.get_content().strip(),
                thread=str(message["References"] or "").split(" ")[0],
                in_reply_to=str(message["In-Reply-To"] or ""),
                key=message["Message-ID"],
            )
            for recipient, message in self.post.received
        ]


_AS_SMTP = {429: "451 Too many messages", 500: "451 A fault of ours", 204: "250 Taken", 400: "550 No such person"}
