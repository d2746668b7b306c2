"""A local HTTP server for tests of downloads."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from fastshapley.datasets.download import cache


class Server:
    """A local HTTP server that sends ``files`` by path and counts requests in ``asked``."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cut = 0  # The number of announced bytes that are not sent.
        self.asked = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked += 1
                body = outer.files.get(self.path)
                if body is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: len(body) - outer.cut])

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.http.server_address[1]}{path}"


def kept() -> list[Path]:
    return [path for path in cache().rglob("*") if path.is_file()]
