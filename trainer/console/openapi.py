"""The OpenAPI document, from the declarations of the calls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from trainer.console.operations import PREFIX, Operation, PageQuery
from trainer.console.problems import CODES, Problem

_REF = "#/components/schemas/{model}"
_EVERY_CALL = (401, 421, 429, 500, 503)
"""Without a key, with a foreign Host, too often, and when we or the database fail."""


def document(operations: Sequence[Operation], prefix: str = "", *, under: str = PREFIX) -> dict[str, Any]:
    """The document that describes ``operations``, which are offered ``under`` that path."""
    schemas: dict[str, Any] = {}
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schemas)
    _, found = models_json_schema([(Problem, "serialization")], ref_template=_REF)
    schemas |= found["$defs"]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Hindsight console",
            "version": _version(),
            "description": "See it live, start and stop it, promote and roll back. Errors have one shape.",
        },
        "servers": [{"url": f"{prefix}{under}" or "/"}],
        "security": [{"key": []}, {"login": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "The console's full or read-only key."},
                "login": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "hindsight_console",
                    "description": "What a browser gets for the key at /login; unsafe calls only from our own pages.",
                },
                "ingest": {"type": "http", "scheme": "bearer", "description": "A key of an agent, a team or the game."},
            },
        },
    }


def _version() -> str:
    try:
        return version("hindsight-grpo")
    except PackageNotFoundError:
        return "0"


def _schema(kind: Any, schemas: dict[str, Any], mode: JsonSchemaMode) -> dict[str, Any]:
    """The schema of ``kind``, with what it is made of among ``schemas``."""
    made = TypeAdapter(kind).json_schema(ref_template=_REF, mode=mode)
    schemas |= made.pop("$defs", {})
    return made


def _operation(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    said: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": _parameters(operation, schemas),
        "responses": {str(status): _answer(operation, schemas) for status in (operation.status, *operation.also)},
    }
    if operation.key == "ingest":
        said["security"] = [{"ingest": []}, {"key": []}]
    if operation.body is not None:
        shape = _schema(operation.body, schemas, "validation")
        said["requestBody"] = {"required": True, "content": {"application/json": {"schema": shape}}}
    statuses = {*_EVERY_CALL, *operation.problems, 422}
    if operation.acts:
        statuses |= {403}
    if issubclass(operation.query, PageQuery):
        statuses |= {404}
    if operation.body is not None:
        statuses |= {400, 413, 415}
    for status in sorted(statuses):
        said["responses"][str(status)] = {
            "description": CODES[status].replace("_", " "),
            "content": {"application/json": {"schema": {"$ref": _REF.format(model="Problem")}}},
        }
    return said


def _answer(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    if operation.media_type != "application/json":
        return {"description": operation.summary, "content": {operation.media_type: {"schema": {"type": "string"}}}}
    shape = _schema(operation.answer, schemas, "serialization")
    return {"description": operation.summary, "content": {"application/json": {"schema": shape}}}


def _parameters(operation: Operation, schemas: dict[str, Any]) -> list[dict[str, Any]]:
    found = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "pattern": operation.parts.get(name, "^[^/]+$")},
        }
        for name in re.findall(r"{(\w+)}", operation.path)
    ]
    query = _schema(operation.query, schemas, "validation")
    for name, shape in query.get("properties", {}).items():
        required = name in query.get("required", [])
        found.append({"name": name, "in": "query", "required": required, "schema": shape})
    for name, meaning in operation.headers.items():
        shape = {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,100}$"}
        found.append({"name": name, "in": "header", "required": False, "description": meaning, "schema": shape})
    return found
