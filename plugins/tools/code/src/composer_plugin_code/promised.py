"""Tools that this plugin names and does not have: their schemas are contracts for the plugins that provide them.

A run that chooses one here is refused with the name that is kept for its provider, of which there is none in this
version, so a model is never told of a tool that cannot work. `composer_testing.contracts.searches` holds a provider's
tool to the same schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from composer_core import Problem, RunView, ToolError

WEB = "web_search"
PROVIDERS: Mapping[str, str] = {"semantic_search": "semsearch/semantic_search", WEB: ""}
"""Promised tool -> the component that is to provide it, "" where none is planned."""


def semantic_search(query: str, folders: list[str] | None = None, limit: int = 10) -> str:
    """Search code by meaning; passages come as path:first-last with their text, best first.

    Args:
        query: what the code does, in words
        folders: folders to look in, relative to the workspace; all of it if left out
        limit: how many passages
    """
    raise ToolError("semantic_search is provided by no plugin of this run")


def web_search(query: str, limit: int = 5) -> str:
    """Search the web; results come as title, address and excerpt, best first.

    Args:
        query: a few words
        limit: how many results
    """
    raise ToolError("web_search is provided by no plugin of this run")


def problems(run: RunView) -> Iterator[Problem]:
    """Promised tools that the run chooses here, and a search of the web where something is trained."""
    for id, _ in run.records.get("tools", ()):
        plugin, _, name = id.partition("/")
        if plugin == "code" and name in PROVIDERS:
            provider = PROVIDERS[name]
            kept = f" ({provider} is the name that is kept for it)" if provider else ""
            fix = f"use a plugin that has it{kept}, or leave it out"
            yield Problem(
                "tools.use", f"{id} is a contract only: its schema is fixed, none of ours provides it yet", fix
            )
        if name == WEB and run.config.stages:
            why = f"{id} is off in training: the web may hold a task's solution, and answers otherwise tomorrow"
            yield Problem("tools.use", why, "leave it out of tools.use, or evaluate without stages")
