"""What a W&B server keeps, and its answers: the part of the GraphQL API that the client uses (wandb 0.31)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ENTITY = "someone"
FILES = {"history": "wandb-history.jsonl", "events": "wandb-events.jsonl", "output": "output.log"}


@dataclass
class StoredRun:
    """A run as it arrived. facts: the variables of its mutations, the later ones over the earlier · lines: of each
    streamed file by offset, so that a request that is sent twice counts once · endings: an exit code per completion ·
    archived: the history that a rewind cut off · cursor: the offset that the next line of the history must have."""

    facts: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, dict[int, str]] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    endings: list[int] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    alerts: list[dict[str, Any]] = field(default_factory=list)
    archived: list[dict[str, Any]] = field(default_factory=list)

    @property
    def history(self) -> list[dict[str, Any]]:
        """The rows in the order in which the server shows them."""
        return [json.loads(line) for _, line in sorted(self.lines.get(FILES["history"], {}).items())]

    @property
    def config(self) -> dict[str, Any]:
        """Without W&B's wrapping of each value."""
        return {name: entry["value"] for name, entry in json.loads(self.facts.get("config") or "{}").items()}

    def stream(self, sent: Mapping[str, Any]) -> None:
        for name, chunk in (sent.get("files") or {}).items():
            if name == "wandb-summary.json":
                self.summary = json.loads(chunk["content"][-1])
                continue
            lines = self.lines.setdefault(name, {})
            assert chunk["offset"] <= len(lines), f"{name}: a gap before line {chunk['offset']}"
            lines |= {chunk["offset"] + place: line for place, line in enumerate(chunk["content"])}
        if sent.get("complete"):
            self.endings.append(sent["exitcode"])

    def rewind(self, step: float) -> None:
        kept = [row for row in self.history if row["_step"] <= step]
        self.archived += self.history[len(kept) :]
        self.lines[FILES["history"]] = dict(enumerate(map(json.dumps, kept)))

    def tail(self) -> dict[str, Any]:
        """What one who resumes the run asks for."""
        counts = {f"{name}LineCount": len(self.lines.get(file, {})) for name, file in FILES.items()}
        rows = self.lines.get(FILES["history"], {})
        return {
            "historyLineCount": counts["historyLineCount"],
            "eventsLineCount": counts["eventsLineCount"],
            "logLineCount": counts["outputLineCount"],
            "historyTail": json.dumps([rows[len(rows) - 1]] if rows else []),
            "eventsTail": "[]",
            "summaryMetrics": json.dumps(self.summary),
            "config": self.facts.get("config") or "{}",
            "wandbConfig": json.dumps({"t": 1} if rows else {}),
            "tags": self.facts.get("tags") or [],
            "notes": "",
        }


@dataclass
class Store:
    """Runs by name, artifacts in the order of their creation, views (reports) likewise. rewinds: whether this server
    can cut a run's history back; not every installation can."""

    address: str = ""
    rewinds: bool = True
    runs: dict[str, StoredRun] = field(default_factory=dict)
    artifacts: list[dict[str, Any]] = field(default_factory=list)
    views: list[dict[str, Any]] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)

    def answer(self, operation: str, variables: dict[str, Any]) -> dict[str, Any]:
        """The `data` of a GraphQL reply; {} for what the client can do without."""
        reply = getattr(self, f"on_{operation}", None)
        return {} if reply is None else reply(variables)

    def on_Viewer(self, variables: dict[str, Any]) -> dict[str, Any]:
        viewer = {"id": "u", "entity": ENTITY, "username": ENTITY, "email": "", "flags": "{}"}
        return {"viewer": viewer | {"teams": {"edges": []}}}

    on_GetDefaultEntity = on_Viewer

    def on_ServerFeaturesQuery(self, variables: dict[str, Any]) -> dict[str, Any]:
        return {"serverInfo": {"features": []}}

    def on_RunResumeStatus(self, variables: dict[str, Any]) -> dict[str, Any]:
        run = self.runs.get(variables["name"])
        bucket = None if run is None else self.bucket(variables["name"]) | run.tail()
        place = {"id": ENTITY, "name": ENTITY}
        return {"model": {"id": "p", "name": variables["project"], "entity": place, "bucket": bucket}}

    def on_UpsertBucket(self, variables: dict[str, Any]) -> dict[str, Any]:
        name = variables["name"]
        inserted = name not in self.runs
        run = self.runs.setdefault(name, StoredRun())
        run.facts |= {key: value for key, value in variables.items() if value is not None}
        return {"upsertBucket": {"bucket": self.bucket(name), "inserted": inserted}}

    def on_RewindRun(self, variables: dict[str, Any]) -> dict[str, Any]:
        self.runs[variables["runName"]].rewind(variables["metricValue"])
        return {"rewindRun": {"rewoundRun": self.bucket(variables["runName"])}}

    def bucket(self, name: str) -> dict[str, Any]:
        run = self.runs[name]
        place = {"id": "p", "name": run.facts.get("project"), "entity": {"id": ENTITY, "name": ENTITY}}
        return {
            "id": f"id-{name}",
            "name": name,
            "displayName": run.facts.get("displayName", name),
            "description": "",
            "config": run.facts.get("config"),
            "sweepName": None,
            "project": place,
            "historyLineCount": len(run.history),
        }

    def on_NotifyScriptableRunAlert(self, variables: dict[str, Any]) -> dict[str, Any]:
        self.runs[variables["runName"]].alerts.append(variables)
        return {"notifyScriptableRunAlert": {"success": True}}

    def on_CreateRunFiles(self, variables: dict[str, Any]) -> dict[str, Any]:
        name = variables["run"]
        files = [{"name": file, "uploadUrl": f"{self.address}/files/{name}/{file}"} for file in variables["files"]]
        return {"createRunFiles": {"runID": f"id-{name}", "uploadHeaders": [], "files": files}}

    def on_ArtifactType(self, variables: dict[str, Any]) -> dict[str, Any]:
        """Of an artifact that is not there."""
        return {"project": {"artifact": None}}

    def on_CreateArtifact(self, variables: dict[str, Any]) -> dict[str, Any]:
        self.artifacts.append(dict(variables["input"]) | {"files": {}, "committed": False})
        artifact = {
            "id": f"a{len(self.artifacts) - 1}",
            "state": "PENDING",
            "artifactSequence": {"latestArtifact": None},
        }
        return {"createArtifact": {"artifact": artifact}}

    def on_CreateArtifactManifest(self, variables: dict[str, Any]) -> dict[str, Any]:
        place = variables["artifactID"]
        file = {"id": "f", "uploadUrl": f"{self.address}/manifests/{place}", "uploadHeaders": []}
        return {"createArtifactManifest": {"artifactManifest": {"id": f"m{place}", "file": file}}}

    def on_UpdateArtifactManifest(self, variables: dict[str, Any]) -> dict[str, Any]:
        place = variables["artifactManifestID"][1:]
        file = {"id": "f", "uploadUrl": f"{self.address}/manifests/{place}", "uploadHeaders": []}
        return {"updateArtifactManifest": {"artifactManifest": {"id": f"m{place}", "file": file}}}

    def on_CreateArtifactFiles(self, variables: dict[str, Any]) -> dict[str, Any]:
        edges = []
        for file in variables["input"]["artifactFiles"]:
            place, path = file["artifactID"], file["name"]
            where = {"storagePath": path, "uploadUrl": f"{self.address}/artifacts/{place}/{path}", "uploadHeaders": []}
            edges.append({"node": where | {"uploadMultipartUrls": None, "artifact": {"id": place}}})
        return {"createArtifactFiles": {"files": {"edges": edges}}}

    def on_CommitArtifact(self, variables: dict[str, Any]) -> dict[str, Any]:
        place = int(variables["artifactID"][1:])
        self.artifacts[place]["committed"] = True
        return {"commitArtifact": {"artifact": {"id": f"a{place}", "digest": self.artifacts[place]["digest"]}}}

    def on_ProjectInternalId(self, variables: dict[str, Any]) -> dict[str, Any]:
        return {"project": {"id": "p", "internalId": "UHJvamVjdDox"}}

    def on_GetProjects(self, variables: dict[str, Any]) -> dict[str, Any]:
        names = dict.fromkeys(str(run.facts.get("project")) for run in self.runs.values())
        more = {"createdAt": "2026-01-01T00:00:00", "isBenchmark": False, "user": None, "__typename": "Project"}
        edges = [{"node": {"id": "p", "name": name, "entityName": ENTITY} | more} for name in names]
        pages = {"__typename": "PageInfo", "hasNextPage": False, "endCursor": None}
        return {"models": {"pageInfo": pages, "edges": edges}}

    def on_upsertView(self, variables: dict[str, Any]) -> dict[str, Any]:
        self.views.append(variables)
        view = {key: variables[key] for key in ("type", "name", "displayName", "description", "spec")}
        place = {"id": "p", "name": variables["projectName"], "entityName": variables["entityName"]}
        view |= {"id": f"view{len(self.views)}", "project": place, "updatedAt": "2026-01-01T00:00:00"}
        return {"upsertView": {"view": view, "inserted": True}}

    def upload(self, path: str, content: bytes) -> None:
        """A PUT to one of the addresses handed out above."""
        kind, owner, name = [*path.lstrip("/").split("/", 2), ""][:3]
        if kind == "files":
            self.runs[owner].files[name] = content
        elif kind == "artifacts":
            self.artifacts[int(owner[1:])]["files"][name] = content
        self.blobs[path] = content


def written(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics.jsonl: what a mirror must equal."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]


def same(left: list[dict[str, Any]], right: list[dict[str, Any]]) -> bool:
    """Row by row, number by number; null in a file is NaN in W&B."""
    spelled = [
        [{k: "nan" if v is None or v != v else v for k, v in row.items()} for row in rows] for rows in (left, right)
    ]
    return spelled[0] == spelled[1]
