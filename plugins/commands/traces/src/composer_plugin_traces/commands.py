"""`composer-run export` and `composer-run import`: traces of a run as files that others read, and theirs for us.

Everything is validated, what is written as well as what is read; nothing is written in half. An export is for training
unless it is asked for evaluations: whoever imitates what was measured measures nothing afterwards. Parity probes are
turns that were cut on purpose, and are no episodes of anybody.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from attrs import evolve, frozen

from composer_core.errors import ConfigError, UserError
from composer_core.history import History
from composer_core.printable import printable
from composer_core.traces import decode
from composer_core.types import SlotKey
from composer_plugin_traces.atif import check_atif, from_atif, to_atif
from composer_plugin_traces.episodes import Checked, Episode, episode_of
from composer_plugin_traces.openai import check_openai, from_openai, to_openai
from composer_plugin_traces.sharegpt import check_sharegpt, to_sharegpt

SHOWN = 20
"""Problems told of one file."""
TRAINING, EVALUATION, PROBE = "of training", "of evaluations (--evaluations takes them)", "parity probes"
"""What episodes are for, as it is told of those that were left out."""


@frozen
class Format:
    """How an episode is written, looked at and read."""

    write: Callable[[Episode], dict[str, Any]]
    check: Callable[[Any], Checked]
    read: Callable[[Mapping[str, Any]], Episode] | None = None


FORMATS: Mapping[str, Format] = {
    "openai": Format(to_openai, check_openai, from_openai),
    "atif": Format(to_atif, check_atif, from_atif),
    "sharegpt": Format(to_sharegpt, check_sharegpt),
}
READ = [name for name, format in FORMATS.items() if format.read]


@click.command(name="export", short_help="Write the traces of a run in a format that others read.")
@click.argument("run_dir", type=click.Path(path_type=Path, file_okay=False))
@click.argument("out", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--format", "name", type=click.Choice(list(FORMATS)), default="openai", show_default=True)
@click.option("--solved", is_flag=True, help="Only episodes that solved their task.")
@click.option("--only", metavar="TEXT", default="", help="Only episodes whose id begins so, as with a stage's name.")
@click.option("--evaluations", is_flag=True, help="Attempts of evaluations as well; they are left out otherwise.")
def export(run_dir: Path, out: Path, name: str, solved: bool, only: str, evaluations: bool) -> None:
    """Write the traces of RUN_DIR to OUT, one JSON document a line.

    openai: messages and tools. atif: ATIF v1.7, with token ids. sharegpt: conversations.
    """
    left: Counter[str] = Counter()
    wanted = {TRAINING, EVALUATION} if evaluations else {TRAINING}
    chosen = (one for one in _episodes(run_dir, only, wanted, left) if not solved or one.outcome == "solved")
    count = _replace(out, _lines(chosen, FORMATS[name]))
    told = "".join(f"; left out: {number} {purpose}" for purpose, number in sorted(left.items()))
    click.echo(f"{count} episodes in {out}{told}")


def purpose_of(key: SlotKey) -> str:
    """What an episode was made for: training makes an attempt once, so it alone names no moment."""
    if not key.moment:
        return TRAINING
    return EVALUATION if key.stage.startswith("eval-") else PROBE


def _lines(episodes: Iterable[Episode], format: Format) -> Iterator[str]:
    """One at a time, since token ids of a run's episodes may be more than memory."""
    for episode in episodes:
        document = format.write(episode)
        _refuse(format.check(document), episode.id)
        yield json.dumps(document, ensure_ascii=False) + "\n"


def _episodes(run_dir: Path, only: str, wanted: Collection[str], left: Counter[str]) -> Iterator[Episode]:
    """Those that are wanted, each with what its group's rewards gave it; `left` counts the others."""
    folder = run_dir / "traces"
    if not folder.is_dir():
        fix = "name a folder that `composer-run train` has written"
        raise ConfigError("no traces in this folder", where=str(run_dir), expected="traces/", fix=fix)
    harness = run_dir / "harness.json"
    tools = json.loads(harness.read_text(encoding="utf-8"))["tools"] if harness.is_file() else ()
    of_group = History.read(run_dir).group_scores
    for path in sorted(folder.rglob("*.trace")):
        if not path.relative_to(folder).as_posix().startswith(only):
            continue
        trace = decode(path.read_bytes())
        if (purpose := purpose_of(trace.key)) in wanted:
            scores = (*trace.scores, *of_group.get(trace.key.episode_id, ()))
            yield episode_of(evolve(trace, scores=scores), tools)
        else:
            left[purpose] += 1


@click.command(name="import", short_help="Read traces of others, to be imitated.")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("out", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option("--format", "name", type=click.Choice(READ), default="openai", show_default=True)
@click.option("--check", is_flag=True, help="Only say what is wrong with FILE.")
def import_(file: Path, out: Path | None, name: str, check: bool) -> None:
    """Read FILE and write its episodes to OUT, which the sampler traces/recorded plays in an sft stage.

    FILE holds one JSON document, a list of them, or one a line.
    """
    if (out is None) != check:
        raise click.UsageError("name OUT, or say --check")
    format, episodes = FORMATS[name], []
    assert format.read
    for number, document in enumerate(_documents(file)):
        _refuse(format.check(document), f"{file}, document {number + 1}")
        episodes.append(format.read(document))
    ids = sum(all(act.tokens for act in episode.acts) for episode in episodes)
    told = f"{len(episodes)} episodes, {ids} with token ids, {sum(one.playable for one in episodes)} can be rendered"
    if out:
        _replace(out, _lines(episodes, FORMATS["atif"]))
        told += f", in {out}"
    click.echo(told)


def _documents(file: Path) -> list[Any]:
    text = file.read_text(encoding="utf-8")
    try:
        whole = json.loads(text)
        return whole if isinstance(whole, list) else [whole]
    except ValueError:
        pass
    documents = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            documents += [json.loads(line)] if line.strip() else []
        except ValueError as error:
            raise UserError("the file is no JSON", where=f"{file}, line {number}", found=str(error)) from error
    return documents


def _refuse(problems: Checked, where: str) -> None:
    if problems:
        lines = "".join(f"\n  - {printable(str(problem))}" for problem in problems[:SHOWN])
        more = f"\n  and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise UserError(f"{len(problems)} problems in {where}{lines}{more}")


def _replace(out: Path, lines: Iterable[str]) -> int:
    """How many lines were written."""
    partial, count = out.with_name(f".{out.name}.part"), 0
    try:
        with partial.open("w", encoding="utf-8") as file:
            for line in lines:
                file.write(line)
                count += 1
        partial.replace(out)
    except OSError as error:
        raise UserError("the file cannot be written", where=str(out), found=error.strerror) from error
    finally:
        partial.unlink(missing_ok=True)
    return count
