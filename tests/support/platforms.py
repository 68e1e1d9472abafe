"""Platforms of channels, on loopback: what each is sent it keeps, and it answers as it is told."""

import json
import time
from dataclasses import dataclass
from typing import Any

from django.test import Client

from agent.models import DEFAULT_AGENT, Agent
from conversations.channel_models import Channel
from conversations.channels import accounts
from conversations.deliveries import signatures
from tests.support.receiver import Receiver, Says


@dataclass(frozen=True)
class Sent:
    """What a platform was sent. ``key``: the same at each attempt; empty if the platform takes none."""

    kind: str
    chat_id: str
    text: str = ""
    thread: str = ""
    in_reply_to: str = ""
    key: str = ""


class WebhookProgram:
    """A program that speaks to an agent by the signed webhook."""

    kind = "webhook"
    tells_duplicates = True

    def __init__(self, settings: Any) -> None:
        self.receiver = Receiver()
        settings.HTTP_ALLOWED_PRIVATE_CIDRS = ["127.0.0.0/8"]
        settings.HTTP_ALLOWED_PORTS = [str(self.receiver.port)]
        self.secret = ""

    def close(self) -> None:
        self.receiver.close()

    def channel(self, owner: Any, **values: Any) -> Channel:
        """An account of it, by which anna may write."""
        given = {"name": "shop", "kind": self.kind, "agent": Agent.objects.get(name=DEFAULT_AGENT), "owner": owner}
        given |= {"settings": {"url": self.receiver.url}, "allow_from": ["anna"]} | values
        made, self.secret = accounts.make(**given)
        return made

    def tell(
        self, text: str = "Hello", *, event_id: str = "event-1", at: float = 0, secret: str = "", **more: Any
    ) -> Any:
        """Tell the host something, as the platform does; returns its answer. ``at``: seconds off the clock."""
        said = {"chatId": "42", "sender": {"id": "anna", "name": "Anna"}, "text": text} | more
        body = json.dumps({name: value for name, value in said.items() if value is not None}).encode()
        signed = signatures.headers_of(
            message_id=event_id, timestamp=int(time.time() + at), body=body, secrets_now=[secret or self.secret]
        )
        return Client().post("/channels/shop/webhook", body, content_type="application/json", headers=signed)

    def edits(self, text: str, **more: Any) -> Any:
        return self.tell(text, type="edit", messageId="event-1", **more)

    def reacts(self, emoji: str, **more: Any) -> Any:
        return self.tell("", type="reaction", messageId="event-1", emoji=emoji, **more)

    def answer(self, *answers: Says) -> None:
        self.receiver.answer(*answers)

    @property
    def sent(self) -> list[Sent]:
        told = [json.loads(each.body) for each in self.receiver.received]
        return [
            Sent(
                kind=each["type"],
                chat_id=each["chatId"],
                text=each.get("text", ""),
                thread=each.get("threadId", ""),
                in_reply_to=each.get("inReplyTo", ""),
                key=each["id"],
            )
            for each in told
        ]


PLATFORMS = (WebhookProgram,)
