"""The moments at which a run is evaluated: before the first rl stage, during it, after the last stage.

What is on disk is not measured again: neither an evaluation that was written down nor an attempt of one that was
interrupted. How an evaluation is made and counted is `evaluate`'s business.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import Factory, define

from composer_core.assembly import Assembly
from composer_core.commits import Commits
from composer_core.evaluate import Evaluation, Run, evaluate
from composer_core.events import Evaluated, Event
from composer_core.executor import result_of
from composer_core.traces import decode
from composer_core.types import EpisodeRequest, EpisodeResult


@define
class Moments:
    """The evaluations of one run."""

    assembly: Assembly
    commits: Commits
    attempt: Run
    """Runs one attempt and tells of it."""
    emit: Callable[[Event], None]
    found: dict[tuple[str, str], Evaluation] = Factory(dict)
    """By moment and name."""

    async def measure(self, when: str, at: str = "") -> None:
        """Every set of a moment: what was written down, the rest measured now; `at` names one that comes often."""
        moment, config, run_dir = at or when, self.assembly.config, self.commits.run_dir
        names = {set_: f"evaluations/{moment}-{set_.name}.json" for set_ in config.evaluations if when in set_.when}
        known = {set_: run_dir.read_json(name) for set_, name in names.items()}
        missing = [set_ for set_, data in known.items() if data is None]
        tasks_of, run = self.assembly.get("tasks").tasks, self._attempts(moment)
        found = await evaluate(missing, moment, tasks_of, run, config.seed, config.limits)
        for set_, measured in zip(missing, found, strict=True):
            known[set_] = measured.to_json()
            if measured.rows:  # what measured nothing is tried again after a resume
                run_dir.write_json(names[set_], known[set_])
        step = self.commits.last.step if self.commits.last else 0
        for set_, data in known.items():
            self.found[moment, set_.name] = evaluation = Evaluation(**data)
            self.emit(Evaluated(name=f"{moment}/{set_.name}", step=step, metrics=evaluation.metrics))
            if when == "during" and "solve_rate" in evaluation.metrics:
                self.commits.keep_best(set_.name, evaluation.metrics["solve_rate"])

    def _attempts(self, moment: str) -> Run:
        """Runs attempts that are not on disk yet; each that ends is written down."""
        run_dir, store = self.commits.run_dir, self.assembly.get("stores")
        path = run_dir.path / "evaluations" / f"{moment}.jsonl"
        have = {row["id"]: row["trace"] for row in run_dir.lines(path)}

        async def run(request: EpisodeRequest, purpose: str) -> EpisodeResult:
            done = have.get(request.key.episode_id)
            if done:
                return result_of(decode(store.get(done)))
            result = await self.attempt(request, purpose)
            if result.trace and result.verdict.valid:  # a void attempt is made again, now or after a resume
                run_dir.append(path, [{"id": request.key.episode_id, "trace": result.trace.uri}])
            return result

        return run
