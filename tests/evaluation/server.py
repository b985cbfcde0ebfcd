"""A small server that speaks OpenAI's chat completions, with replies from a function."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, Any]


def chat(content: str | None, tokens: int | None = 5, finish: str = "stop", **message: Any) -> Reply:
    """A reply with one choice."""
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": content, **message}}
    body = {"id": "x", "object": "chat.completion", "created": 0, "model": "tiny", "choices": [choice]}
    usage = {"prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": 3 + (tokens or 0)}
    return 200, body | ({"usage": usage} if tokens is not None else {})


@contextmanager
def serving(answer: Callable[[dict], Reply], models: Reply | None = None) -> Iterator[tuple[str, list[dict]]]:
    """Yields the address and the bodies of all chat requests so far."""
    asked: list[dict] = []
    listed = models or (200, {"object": "list", "data": [{"id": "tiny", "object": "model", "created": 0}]})

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self._send(*listed)

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(body)
            self._send(*answer(body))

        def _send(self, status: int, body: Any) -> None:
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
