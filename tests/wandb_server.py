"""A W&B server on the loopback address: the real client talks to it over HTTP. It can misbehave on demand."""

from __future__ import annotations

import gzip
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from wandb_store import Store, StoredRun

KEY = "0123456789abcdef" * 3


@dataclass
class Fault:
    """What happens to requests whose name matches `where`, `times` times. One of: status: answered with it · hang:
    taken and never answered · drop: done, and the connection closed without a word · delay: seconds before it is
    done."""

    where: str
    times: float = float("inf")
    status: int | None = None
    hang: bool = False
    drop: bool = False
    delay: float = 0.0


@dataclass
class Server(Store):
    """A store that is reached over HTTP. calls: every request's name, answered or not · mark: (number, path) of a file
    that appears once a run has so many rows · later: the faults from then on."""

    faults: list[Fault] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    mark: tuple[int, Path] | None = None
    later: list[Fault] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def run(self) -> StoredRun:
        """The only run."""
        (run,) = self.runs.values()
        return run

    def take(self, name: str, sent: dict) -> dict:
        self.runs[name].stream(sent)
        if self.mark is not None and len(self.runs[name].history) >= self.mark[0]:
            self.faults, self.later = [*self.faults, *self.later], []
            self.mark[1].touch()
        return {}

    def fault(self, name: str) -> Fault | None:
        for fault in self.faults:
            if fault.times > 0 and re.search(fault.where, name):
                fault.times -= 1
                return fault
        return None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Loopback

    def do_POST(self) -> None:
        body = self.body()
        if self.path.endswith("/graphql"):
            sent = json.loads(body)
            named = re.search(r"(?:query|mutation)\s+(\w+)", sent["query"])
            operation = named.group(1) if named else sent["query"][:40]
            self.serve(operation, lambda: self.graphql(operation, sent.get("variables") or {}))
        elif self.path.endswith("/file_stream"):
            name = self.path.split("/")[-2]
            self.serve("file_stream", lambda: self.store.take(name, json.loads(body)))
        else:
            self.serve(self.path, dict)

    def do_PUT(self) -> None:
        body = self.body()
        self.serve("upload", lambda: self.store.upload(self.path, body) or {})

    def do_GET(self) -> None:
        self.serve("download", dict)

    @property
    def store(self) -> Server:
        return self.server.store

    def graphql(self, operation: str, variables: dict) -> dict:
        if operation == "RewindRun" and not self.store.rewinds:
            return {"errors": [{"message": 'Cannot query field "rewindRun" on type "Mutation".'}]}
        return {"data": self.store.answer(operation, variables)}

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            body = b"".join(parts)
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def serve(self, name: str, act) -> None:
        store = self.store
        with store.lock:
            store.calls.append(name)
            fault = store.fault(name) or Fault("")
        if fault.hang:
            store.released.wait(300)
        time.sleep(fault.delay)
        answer: dict = {}
        if fault.status is None and not fault.hang:
            with store.lock:
                answer = act()
        if fault.drop or fault.hang:
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        self.reply(fault.status or 200, answer)

    def reply(self, status: int, answer: dict) -> None:
        content = json.dumps(answer).encode()
        with suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on the console."""


class Loopback(ThreadingHTTPServer):
    daemon_threads = True
    store: Server

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no event."""


@contextmanager
def serve(*faults: Fault, port: int = 0, store: Server | None = None) -> Iterator[Server]:
    """A server at `server.address`. port, store: for one that comes back after it was away."""
    server = Loopback(("127.0.0.1", port), Handler)
    server.store = store or Server()
    server.store.address = f"http://127.0.0.1:{server.server_port}"
    server.store.faults = list(faults)
    threading.Thread(target=server.serve_forever, daemon=True, kwargs={"poll_interval": 0.05}).start()
    try:
        yield server.store
    finally:
        server.store.released.set()
        server.shutdown()
        server.server_close()
