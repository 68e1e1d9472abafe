"""A mailbox on loopback, by as much of IMAP4rev1 (RFC 3501) as a reader needs; what it does not know, it refuses."""

import re
import socketserver
import threading
from typing import Any


class ImapServer:
    """One mailbox, INBOX; the number of a message is its place, from 1 on."""

    def __init__(self, user: str, password: str) -> None:
        self.messages: list[bytes] = []
        self.validity = 1
        self.is_broken = False
        mailbox = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self._say("* OK [CAPABILITY IMAP4rev1] ready")
                while line := self.rfile.readline():
                    tag, _, command = line.decode().strip().partition(" ")
                    if mailbox.is_broken:
                        return
                    if self._do(tag, command):
                        return

            def _say(self, text: str) -> None:
                self.wfile.write(f"{text}\r\n".encode())

            def _do(self, tag: str, command: str) -> bool:
                """Follow a command; True if it was the last."""
                name, _, rest = command.partition(" ")
                match name.upper():
                    case "CAPABILITY":
                        self._say("* CAPABILITY IMAP4rev1")
                    case "LOGIN":
                        given = [each.strip('"') for each in rest.split(" ")]
                        if given != [user, password]:
                            self._say(f"{tag} NO [AUTHENTICATIONFAILED] wrong")
                            return False
                    case "EXAMINE":
                        if rest != '"INBOX"':
                            self._say(f"{tag} NO no such folder")
                            return False
                        self._say(f"* {len(mailbox.messages)} EXISTS")
                    case "STATUS":
                        numbers = f"UIDVALIDITY {mailbox.validity} UIDNEXT {len(mailbox.messages) + 1}"
                        self._say(f'* STATUS "INBOX" ({numbers})')
                    case "UID":
                        self._uid(rest)
                    case "LOGOUT":
                        self._say("* BYE")
                        self._say(f"{tag} OK done")
                        return True
                    case _:
                        self._say(f"{tag} BAD unknown")
                        return False
                self._say(f"{tag} OK done")
                return False

            def _uid(self, command: str) -> None:
                if found := re.fullmatch(r"SEARCH UID (\d+):\*", command):
                    last = len(mailbox.messages)
                    first = min(int(found[1]), last)  # n:* is *:n where n is past the last
                    uids = " ".join(str(uid) for uid in range(max(first, 1), last + 1))
                    self._say(f"* SEARCH {uids}".rstrip())
                    return
                fetched = re.fullmatch(r"FETCH (\d+) \((RFC822\.SIZE|BODY\.PEEK\[\](?:<0\.(\d+)>)?)\)", command)
                assert fetched, command
                number = int(fetched[1])
                message = mailbox.messages[number - 1]
                if fetched[2] == "RFC822.SIZE":
                    self._say(f"* {number} FETCH (UID {number} RFC822.SIZE {len(message)})")
                    return
                part = message[: int(fetched[3])] if fetched[3] else message
                self._say(f"* {number} FETCH (UID {number} BODY[] {{{len(part)}}}")
                self.wfile.write(part)
                self._say(")")

        self._server: Any = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
