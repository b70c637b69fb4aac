"""The OpenAPI document, made of the routes and of the classes that they read and write."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Mapping
from typing import Any

import attrs

from composer_plugin_server.api import ROUTES, Route
from composer_plugin_server.wire import API, KEY_HEADER, KINDS, LEASE_HEADER, ErrorReply

NAMES = {str: "string", int: "integer", float: "number", bool: "boolean"}
BYTES = {"type": "string", "contentEncoding": "base64"}


def document(version: str) -> dict[str, Any]:
    """OpenAPI 3.1."""
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for route in ROUTES:
        path = re.sub(r"{(\w+):[^/]*(?:\[\^/\][^/]*)?}", r"{\1}", f"/{API}{route.path}")
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, path, schemas)
    paths[f"/{API}/operations/{{key}}"] = {"delete": _cancel(schemas)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Composer environment server", "version": version},
        "security": [{"token": []}],
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(route: Route, path: str, schemas: dict[str, Any]) -> dict[str, Any]:
    parameters = [_parameter(name, "path") for name in re.findall(r"{(\w+)}", path)]
    parameters += [_parameter(name, "query") for name in route.query]
    parameters += [_parameter(LEASE_HEADER, "header")] if route.leased else []
    parameters += [_parameter(KEY_HEADER, "header")] if route.keyed else []
    found: dict[str, Any] = {
        "summary": route.does,
        "parameters": parameters,
        "responses": _answers(route.reply, schemas),
    }
    if route.body:
        found["requestBody"] = {"required": True, "content": _content(route.body, schemas)}
    return found


def _cancel(schemas: dict[str, Any]) -> dict[str, Any]:
    parameters = [_parameter("key", "path"), _parameter(LEASE_HEADER, "header")]
    does = "Cancel the request with this key, or undo what it made."
    return {"summary": does, "parameters": parameters, "responses": _answers(dict, schemas)}


def _parameter(name: str, where: str) -> dict[str, Any]:
    return {"name": name, "in": where, "required": True, "schema": {"type": "string"}}


def _answers(reply: type, schemas: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"200": {"description": "Done.", "content": _content(reply, schemas)}}
    wrong = {"content": _content(ErrorReply, schemas)}
    for status in sorted({401, *(status for _, status in KINDS.values())}):
        named = ", ".join(name for name, (_, code) in KINDS.items() if code == status) or "Refused"
        found[str(status)] = {"description": f"{named}.", **wrong}
    return found


def _content(kind: type, schemas: dict[str, Any]) -> dict[str, Any]:
    if kind is bytes:
        return {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    return {"application/json": {"schema": schema(kind, schemas)}}


def schema(hint: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of a type; classes are put into `schemas` and referred to."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if hint is bytes:
        return dict(BYTES)
    if hint in NAMES:
        return {"type": NAMES[hint]}
    if origin is tuple:
        return {"type": "array", "items": schema(options[0], schemas)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [{"type": "null"} if one is types.NoneType else schema(one, schemas) for one in options]}
    if attrs.has(hint):
        return _class(hint, schemas)
    return {"type": "object"} if hint in (dict,) or origin in (dict, Mapping) else {}


def _class(cls: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    if cls.__name__ not in schemas:
        schemas[cls.__name__] = {}
        hints = typing.get_type_hints(cls)
        fields = attrs.fields(cls)
        schemas[cls.__name__] = {
            "type": "object",
            "description": inspect.getdoc(cls) or "",
            "properties": {field.name: schema(hints[field.name], schemas) for field in fields},
            "required": [field.name for field in fields if field.default is attrs.NOTHING],
            "additionalProperties": False,
        }
    return {"$ref": f"#/components/schemas/{cls.__name__}"}
