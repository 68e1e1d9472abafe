"""Platforms of chats on loopback, each as strict as its published protocol: what it does not know, it refuses."""

from collections.abc import Sequence
from typing import Any

from tests.support.chat_platforms.accounts import SECRETS, hear, hear_until, make_channel
from tests.support.chat_platforms.dingtalk import DingTalkServer
from tests.support.chat_platforms.discord import DiscordServer
from tests.support.chat_platforms.feishu import FeishuServer
from tests.support.chat_platforms.mail import MailHouse
from tests.support.chat_platforms.matrix import MatrixServer
from tests.support.chat_platforms.qq import QQServer
from tests.support.chat_platforms.slack import SlackServer
from tests.support.chat_platforms.telegram import TelegramServer
from tests.support.chat_platforms.whatsapp import WhatsAppServer

# Each says what its platform lacks, and why: those cases are not tried.
PEERS: Sequence[Any] = (
    TelegramServer,
    SlackServer,
    MatrixServer,
    MailHouse,
    DiscordServer,
    WhatsAppServer,
    FeishuServer,
    DingTalkServer,
    QQServer,
)

__all__ = [
    "PEERS",
    "SECRETS",
    "DingTalkServer",
    "DiscordServer",
    "FeishuServer",
    "MailHouse",
    "MatrixServer",
    "QQServer",
    "SlackServer",
    "TelegramServer",
    "WhatsAppServer",
    "hear",
    "hear_until",
    "make_channel",
]
