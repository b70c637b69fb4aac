"""The result of an episode that the executor gives up: its process has vanished, or took too long."""

from __future__ import annotations

from composer_core.episode import fault_of
from composer_core.errors import ComposerError
from composer_core.types import EpisodeRequest, EpisodeResult, Outcome, Verdict


def void(request: EpisodeRequest, cause: str, error: ComposerError) -> EpisodeResult:
    """An episode that left nothing behind."""
    verdict = Verdict(Outcome.VOID, cause)
    return EpisodeResult(request.key, request.group, None, verdict, faults=(fault_of(cause, error, "ray/ray"),))
