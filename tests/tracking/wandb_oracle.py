"""What W&B got: a reader of its offline files, and a server on the loopback address that takes runs."""

import gzip
import json
import re
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

BLOCK = 32768  # the file is a LevelDB log: records in blocks of this size, after a header of 7 bytes
WHOLE, LAST = 1, 4


def records(path: Path) -> Iterator[Any]:
    """The protobuf records of a `.wandb` file, as far as they are written."""
    content = path.read_bytes()
    assert content[:4] in (b":W&B", b"")
    position, record = 7, b""
    while position + 7 <= len(content):
        left = BLOCK - position % BLOCK
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", content[position : position + 7])
        position += 7 + length
        if position > len(content):
            return
        record += content[position - length : position]
        if kind in (WHOLE, LAST):
            parsed = wandb_internal_pb2.Record()
            parsed.ParseFromString(record)
            record = b""
            yield parsed


def unflatten(items: Any) -> dict[str, Any]:
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


class OfflineRun:
    """One `.wandb` file, read back."""

    def __init__(self, path: Path) -> None:
        self.history: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self.metrics: list[Any] = []
        self.exit_code: int | None = None
        for record in records(path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                self.run = record.run
                self.config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
            elif kind == "history":
                self.history.append(unflatten(record.history.item))
            elif kind == "summary":
                self.summary |= unflatten(record.summary.update)
            elif kind == "metric":
                self.metrics.append(record.metric)
            elif kind == "exit":
                self.exit_code = record.exit.exit_code

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The figures: without W&B's own keys and without the parts of tables and histograms."""
        return [
            {k: v for k, v in row.items() if k[0] != "_" and f"{k.rpartition('.')[0]}._type" not in row}
            for row in self.history
        ]


def offline_runs(folder: Path) -> list[OfflineRun]:
    """The finished runs of a folder. W&B's service process may write the last records after `finish` has returned."""
    deadline = time.monotonic() + 60
    while True:
        runs = [OfflineRun(path) for path in sorted(folder.glob("wandb/offline-run-*/*.wandb"))]
        if all(run.exit_code is not None for run in runs) or time.monotonic() > deadline:
            return runs
        time.sleep(0.05)


class Server:
    """Takes runs as the real one does; keeps what was created and each history row that arrived."""

    def __init__(self) -> None:
        self.created: list[dict[str, Any]] = []
        self.rows: list[dict[str, Any]] = []
        self.complete: list[int] = []

    def answer(self, operation: str, variables: dict[str, Any]) -> dict[str, Any]:
        if operation == "Viewer":
            viewer = {"id": "u", "entity": "someone", "username": "someone", "email": "", "flags": "{}"}
            return {"viewer": viewer | {"teams": {"edges": []}}}
        if operation == "UpsertBucket":
            self.created.append(variables)
            project = {"name": variables["project"], "entity": {"name": "someone"}}
            bucket = {"id": "b", "name": variables["name"], "displayName": variables["name"], "project": project}
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        if operation == "RunResumeStatus" and self.rows:
            return {"model": {"id": "p", "name": "minirl", "bucket": self.stored()}}
        if operation == "CreateRunFiles":
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": []}}
        if operation == "ServerFeaturesQuery":
            return {"serverInfo": {"features": []}}
        return {}

    def stored(self) -> dict[str, Any]:
        """The run as it stands, for one that resumes it."""
        last = json.dumps(self.rows[-1])
        counts = {"historyLineCount": len(self.rows), "eventsLineCount": 0, "logLineCount": 0}
        tails = {"historyTail": json.dumps([last]), "eventsTail": "[]", "summaryMetrics": last, "config": "{}"}
        name = self.created[0]["name"]
        return {"name": name, "displayName": name, "wandbConfig": '{"t": 1}', "tags": []} | counts | tails

    def stream(self, sent: dict[str, Any]) -> None:
        for line in sent.get("files", {}).get("wandb-history.jsonl", {}).get("content", []):
            self.rows.append(json.loads(line))
        if sent.get("complete"):
            self.complete.append(sent["exitcode"])


@contextmanager
def serve() -> Iterator[tuple[Server, str]]:
    """A server and its address."""
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            sent, answer = json.loads(body), {}
            if self.path.endswith("/graphql"):
                named = re.search(r"(?:query|mutation)\s+(\w+)", sent["query"])
                operation = named.group(1) if named else ""
                answer = {"data": state.answer(operation, sent.get("variables") or {})}
            elif self.path.endswith("/file_stream"):
                state.stream(sent)
            reply = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing on the console."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield state, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
