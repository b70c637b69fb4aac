"""One HTML file out of a model: template, style sheet, script and data, all inline.

Traces hold text that a model or a tool wrote, so nothing in the page trusts its data. The data is JSON in which every
character that HTML could read as markup is escaped; the script builds elements and sets text, never markup; and a
content security policy allows exactly this style sheet and this script, by their hashes, and no request of any kind.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def page(model: Mapping[str, Any]) -> str:
    style, script, template = (_asset(name) for name in ("report.css", "report.js", "report.html"))
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    title = str(model["name"]).encode("utf-8", "backslashreplace").decode()
    parts = {
        "POLICY": html.escape(policy),
        "TITLE": html.escape(title),
        "STYLE": style,
        "SCRIPT": script,
        "DATA": embedded(model),
    }
    head, *rest = template.split("{{")
    pieces = (piece.split("}}", 1) for piece in rest)
    return head + "".join(parts[name] + text for name, text in pieces)


def embedded(value: Any) -> str:
    """JSON that may stand inside a script element: pure ASCII, no character that starts markup."""
    text = json.dumps(_finite(value), separators=(",", ":"), default=str)
    for character, escape in UNSAFE.items():
        text = text.replace(character, escape)
    return text


def _finite(value: Any) -> Any:
    """JSON has no word for what is not finite; the page shows a gap there."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _asset(name: str) -> str:
    return files("composer_plugin_report").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
