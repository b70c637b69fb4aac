"""Asks seven published findings of a small policy, and writes docs/findings.md.

What has a result is not measured again, finished runs are read and interrupted ones resumed, so the command can be
given again after any interruption. A result is one JSON in examples/findings/results.

    python examples/findings/findings.py                    # every finding, three seeds
    python examples/findings/findings.py effort --seeds 1   # one finding, one seed
    python examples/findings/findings.py effort --quick     # in miniature: shows that it works, measures nothing
    python examples/findings/findings.py --page             # the page of the results that there are

Results are committed. To measure them again give folders of your own:

    python examples/findings/findings.py effort --results build/again --runs build/runs --out build
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from study import long_horizon, results
from study.findings import FINDINGS
from study.page import arms_of, figure, judge, page, section
from study.recipes import HERE, chain
from study.running import Runs

from composer_core.errors import ComposerError, ConfigError, did_you_mean
from composer_core.rundir import RunDir

ROOT = HERE.parent.parent
DOCS = ROOT / "docs"
INTERRUPTED = "interrupted; the same command goes on from what is there, runs from what they committed last"
ANEW = "with --results, --runs and --out of new folders it is measured again, in half an hour a seed or longer"
NOTHING_KEPT = "interrupted; nothing was kept"


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        refuse(options)
        if options.quick:
            return measure_quickly(options)
        failed: list[str] = []
        runs = Runs(options.runs, settings=options.set)
        if not options.page:
            results.load(options.results, runs)  # what cannot be read is told now and not after hours
            with RunDir(options.runs).lock():
                failed = measure_all(options, runs)
        write(results.load(options.results, runs), options.out)
    except ComposerError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except (KeyboardInterrupt, SystemExit) as end:
        print(NOTHING_KEPT if options.quick else INTERRUPTED, file=sys.stderr)
        if isinstance(end, SystemExit):
            raise
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
    return 1 if failed else 0


def refuse(options: argparse.Namespace) -> None:
    """What cannot be done, would be ignored, or would write something else over what is committed: ConfigError."""
    default = vars(parser().parse_args([]))
    given = {name for name, value in vars(options).items() if value != default[name]}
    for alone, takes in (
        ("page", {"results", "out", "set", "runs", "jobs"}),
        ("quick", {"findings", "seeds", "jobs", "set"}),
    ):
        if alone in given and (ignored := given - takes - {alone}):
            raise ConfigError(f"--{alone} makes no use of {', '.join(sorted(ignored))}", fix="leave it out")
    if options.page and not options.results.is_dir():
        told, fix = "the page would be empty", "give the command without --page first"
        raise ConfigError(told, where="--results", found=f"no folder {options.results}", fix=fix)
    own = {"results", "out"} if options.page else {"results", "out", "runs"}
    if options.set and not options.quick and own - given:
        fix = f"give it {', '.join(f'--{name}' for name in sorted(own))} of its own"
        raise ConfigError("--set is to try something out", fix=fix)
    if not options.page and not metadata.entry_points(group="composer.plugins", name="chores"):
        raise ConfigError("the task set is not installed", who="chores", fix="pip install ./examples/findings")


def measure_all(options: argparse.Namespace, runs: Runs) -> list[str]:
    """Make what findings lack, seed by seed; returns the runs that failed. Those whose times count come last, alone."""
    failed: list[str] = []
    for seed in options.seeds:
        arms = [(key, arm) for key in options.findings or FINDINGS for arm in missing(key, seed, options)]
        if not arms:
            print(f"seed {seed}: nothing to measure, all results are in {options.results}; {ANEW}")
        lost = runs.make([run for key, arm in arms for run in FINDINGS[key].arms[arm][:1]], seed, options.jobs)
        timed = [run for key, arm in arms for run in FINDINGS[key].arms[arm][1:]]
        lost += runs.make([run for run in timed if not {*chain(run)} & {*lost}], seed, 1)
        for key, arm in arms:
            if not {one for run in FINDINGS[key].arms[arm] for one in chain(run)} & {*lost}:
                measure(key, arm, seed, runs, options)
        failed += [f"{run}-{seed}" for run in lost]
    return failed


def missing(key: str, seed: int, options: argparse.Namespace) -> list[str]:
    """The arms of a finding that have no result with this seed and can have one."""
    arms = [arm for arm in FINDINGS[key].arms if not results.path(key, arm, seed, options.results).exists()]
    if key == "summary" and arms and (absent := long_horizon.missing(options.long_horizon, seed)):
        told = ConfigError(f"summary, seed {seed}: no finished run", where=str(absent[0]), fix=long_horizon.COMMAND)
        if key in options.findings:
            raise told
        print(told, file=sys.stderr)
        return []
    return arms


def measure(key: str, arm: str, seed: int, runs: Runs, options: argparse.Namespace) -> None:
    """Write the result of an arm, whose runs are finished."""
    if key == "summary":
        found = long_horizon.read(arm, options.long_horizon, seed)
    else:
        given = f"python examples/findings/findings.py {key} --seeds {seed}"
        given += "".join(f" --set '{text}'" for text in options.set)
        found = results.measure(key, arm, seed, runs, given)
    print(f"wrote {results.save(found, options.results)}", flush=True)


def measure_quickly(options: argparse.Namespace) -> int:
    """Every run in miniature, one seed, in a folder that is thrown away; prints what the page would say of it."""
    with tempfile.TemporaryDirectory() as folder:
        options.results, options.seeds = Path(folder) / "results", options.seeds[:1]
        runs = Runs(Path(folder) / "runs", quick=True, settings=options.set)
        failed = measure_all(options, runs)
        for name in failed:
            print((Path(folder) / f"runs/{name}.log").read_text(encoding="utf-8"), file=sys.stderr)
        found = results.load(options.results, runs)
    judged = judge(found)
    print("\nWhat the page would say. It is made in miniature: nothing of this is a finding.")
    for key in options.findings or FINDINGS:
        arms = arms_of(key, found)
        print("", *section(key, judged[key], arms, ""), sep="\n")
        print(f"The figure has {len(figure(key, judged[key], arms) or '')} characters.")
    return 1 if failed else 0


def write(found: Sequence[results.Result], out: Path) -> None:
    """The page, and a figure for each finding that has a result."""
    judged, remarks = judge(found), tomllib.loads((HERE / "remarks.toml").read_text(encoding="utf-8"))
    drawn = {key: figure(key, judged[key], arms_of(key, found)) for key in FINDINGS}
    made = {f"findings/{key}.svg": text for key, text in drawn.items() if text}
    made["findings.md"] = page(found, judged, remarks)
    (out / "findings").mkdir(parents=True, exist_ok=True)
    for name, text in made.items():
        (out / name).write_text(text, encoding="utf-8")
    print(f"wrote {out / 'findings.md'}")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        usage="%(prog)s [FINDING ...] [--seeds SEED ...] [options]",  # names that follow --seeds would be seeds
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("findings", nargs="*", type=known, metavar="FINDING", help=f"default all: {', '.join(FINDINGS)}")
    made.add_argument("--seeds", type=at_least_1, nargs="+", default=[1, 2, 3], help="default: 1 2 3")
    made.add_argument(
        "--jobs",
        type=at_least_1,
        default=len(os.sched_getaffinity(0)),
        help="runs at a time, each on one core; default: as many as there are cores",
    )
    made.add_argument(
        "--quick",
        action="store_true",
        help="every run in miniature but those of finding 6, the first seed; keeps nothing",
    )
    made.add_argument("--page", action="store_true", help="run nothing, write the page of the results that there are")
    made.add_argument(
        "--runs",
        type=folder,
        default=ROOT / "runs/findings",
        help="folder of the run folders and their logs, default: runs/findings",
    )
    made.add_argument(
        "--long-horizon",
        type=folder,
        default=ROOT / "runs/long_horizon",
        help="that example's runs, default: runs/long_horizon",
    )
    made.add_argument(
        "--results", type=folder, default=results.FOLDER, help="folder of the results, default: those committed"
    )
    made.add_argument("--out", type=folder, default=DOCS, help="folder of the page and its figures, default: docs")
    made.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set in every arm, to try out; with --results, --out and --runs, and again with --page of what was found",
    )
    return made


def folder(text: str) -> Path:
    return Path(text).resolve()


def known(text: str) -> str:
    if text not in FINDINGS:
        raise argparse.ArgumentTypeError(f"no finding {text!r}; {did_you_mean(text, FINDINGS)}")
    return text


def at_least_1(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, found {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
