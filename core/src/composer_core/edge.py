"""A built component as the framework holds it: every call of a method crosses `errors.boundary`.

The assembly hands components out behind an edge, so a trainer, store or task set that breaks is named wherever it is
called from, and no caller has to remember it. Coroutines, generators and other iterators are guarded while they
run, not only when they are made. Whatever is no method (`vocab_size`) is passed on as it is.

Not behind an edge: sandboxes, tools, rewards and algorithms, which core calls through wrappers of its own, and kernels,
which are called inside a model's layers.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

from composer_core.errors import boundary


class Edge:
    """Stands for `made`, the component `id` of `kind`."""

    def __init__(self, made: Any, kind: str, id: str) -> None:
        self._made = made
        self._kind = kind
        self._id = id

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """What is asked with `isinstance` is asked of the component: one of its plugin's others may know its type."""
        return type(self._made)

    def __repr__(self) -> str:
        return f"<{self._id} ({self._kind})>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # protocols of copy and pickle; a half-made copy has no `_made` to ask
            raise AttributeError(name)
        found = getattr(self._made, name)
        return partial(self._call, found) if callable(found) else found

    def _call(self, method: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if inspect.iscoroutinefunction(method):  # called when awaited: a task may be cancelled before it starts
            return self._run(method, *args, **kwargs)
        with boundary(self._kind, self._id):
            found = method(*args, **kwargs)
        if hasattr(found, "__await__"):
            return self._awaited(found)
        return self._iterated(found) if isinstance(found, Iterator) else found

    async def _run(self, method: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        with boundary(self._kind, self._id):
            return await method(*args, **kwargs)

    async def _awaited(self, found: Awaitable[Any]) -> Any:
        with boundary(self._kind, self._id):
            return await found

    def _iterated(self, found: Iterator[Any]) -> Iterator[Any]:
        with boundary(self._kind, self._id):
            yield from found
