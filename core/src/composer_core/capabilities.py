"""Names of what a component may offer and a run may need.

A record declares what its component *may* do; the built object *probes* what it can do here. `check` compares needs
with the first, `check --probe` and the start of a run with the second. A setting of the run that needs something names
it here, so an unknown or unmet need is an error and never an ignored setting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = [
    "CAPABILITIES",
    "unknown",
]

CAPABILITIES: Mapping[str, str] = {
    "sandbox.isolates": "commands cannot reach the host's files, processes or network",
    "sandbox.forks": "a live sandbox can be forked into n new ones",
    "sandbox.snapshots.files": "a live sandbox's files can be captured and created from again",
    "sandbox.snapshots.full": "memory and processes are captured too",
    "sandbox.sessions": "named shells whose state persists between commands",
    "sandbox.pauses": "a sandbox can be paused and resumed",
    "sandbox.networks": "network policies beyond none",
    "sandbox.leases": "sandboxes are reaped when their lease is not renewed",
    "sandbox.limits.memory": "a memory limit is enforced",
    "sandbox.limits.processes": "a limit on processes is enforced",
    "sandbox.limits.file_size": "a limit on the size of a written file is enforced",
    "sandbox.limits.disk": "a limit on the bytes written to the workspace is enforced",
    "sandbox.changes": "changed paths are known without reading the whole workspace",
    "sampler.logprobs": "log-probabilities of the distribution sampled from",
    "sampler.versions": "every sampled id carries the version that produced it",
    "sampler.swaps": "weights can be replaced while generations are in flight",
    "sampler.routes": "expert ids of every forwarded token are returned",
    "sampler.deterministic": "the same ids whatever else is in the batch",
    "reward.hints": "says of turns what would have helped there, for text feedback",
    "trainer.deterministic": "identical weights from identical batches",
    "trainer.routes": "replays the sampler's expert ids",
    "trainer.parity": "compares itself with the sampler's log-probabilities, with a probe's where a batch has none",
    "trainer.reference": "keeps the weights RL started from, for a KL term",
    "model.experts": "mixture-of-experts layers whose kernel can be chosen",
    "model.routes": "returns the expert ids it used and accepts given ones",
    "model.cache": "incremental decoding with a KV cache",
    "context.branches": "may open new branches (summaries)",
    "executor.remote": "episodes run in other processes",
}


def unknown(names: Iterable[str]) -> list[str]:
    """Those of `names` that are not capabilities."""
    return [name for name in names if name not in CAPABILITIES]
