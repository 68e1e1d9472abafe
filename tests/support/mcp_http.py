"""The server of mcp_server.py over HTTP: ``python mcp_http.py MODE FILE``, streamable HTTP at /mcp and SSE at /sse. It
says its port on its standard output. What it does wrong at the level of HTTP is a mode as well.
"""

import json
import queue
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import mcp_server

MODE = mcp_server.MODE
streams: dict[str, queue.Queue[str]] = {}


class McpHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        if urlsplit(self.path).path != "/sse":
            self.say(405, b"")
            return
        name = str(len(streams))
        mine = streams[name] = queue.Queue()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(f"event: endpoint\ndata: /messages?s={name}\n\n".encode())
        try:
            while text := mine.get():
                self.wfile.write(f"event: message\ndata: {text}\n\n".encode())
        except OSError:
            pass
        self.close_connection = True

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        is_call = asked["method"] == "tools/call"
        if MODE == "redirect":
            self.say(307, b"", Location=str(mcp_server.FILE))
        elif MODE == "wrong key" and self.headers.get("Authorization") != "Bearer right":
            self.say(401, b"")
        elif is_call and MODE == "flood":
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for _ in range(64):
                self.wfile.write(b"100000\r\n" + b"x" * (1 << 20) + b"\r\n")
        elif is_call and MODE == "compressed":
            self.say(200, b"x" * 100, **{"Content-Type": "application/json", "Content-Encoding": "gzip"})
        elif is_call and MODE == "gateway":
            mcp_server.mark(asked["params"]["arguments"]["text"])
            self.say(502, b"")
        elif "id" not in asked:
            self.say(202, b"")
        else:
            mcp_server.HEADERS = dict(self.headers)
            try:
                answer = {"jsonrpc": "2.0", "id": asked["id"], "result": mcp_server.answer(asked)}
            except LookupError:
                error = {"code": -32601, "message": "Method not found"}
                answer = {"jsonrpc": "2.0", "id": asked["id"], "error": error}
            if of := parse_qs(urlsplit(self.path).query).get("s"):
                streams[of[0]].put(json.dumps(answer))
                self.say(202, b"")
            else:
                self.say(200, json.dumps(answer).encode(), **{"Content-Type": "application/json"})

    def say(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[3]) if len(sys.argv) > 3 else 0), McpHandler)
    server.daemon_threads = True
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()
