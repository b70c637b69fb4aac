"""Run the visible tests, one-line assertions: python3 -ISB check.py"""

import _signal  # type: ignore[import-not-found]
import posix  # with _signal, what is built in: a run costs little more than the interpreter's start
import sys

HERE = __file__.rpartition("/")[0] or "."
SECONDS = 0.5


class TimedOut(BaseException):
    pass


def alarm(*_: object) -> None:
    raise TimedOut


def explain(text: str, scope: dict[str, object]) -> str:
    """What an assertion found, or nothing when it holds."""
    _signal.setitimer(_signal.ITIMER_VIRTUAL, SECONDS)
    try:
        if eval(text, scope):
            return ""
        return " got " + repr(eval(text.rpartition(" == ")[0] or text, scope))[:80]
    except BaseException as error:
        return " got " + type(error).__name__
    finally:
        _signal.setitimer(_signal.ITIMER_VIRTUAL, 0)


def run(path: str, failures: list[str]) -> int:
    """Run one test file; returns how many assertions were tried."""
    with open(path) as file:
        source = file.read()
    scope: dict[str, object] = {}
    count = 0
    exec(compile(source, path, "exec"), scope)
    for line in source.split("\n"):
        text = line.strip()
        if text.startswith("assert "):
            count += 1
            found = explain(text[7:], scope)
            if found:
                failures.append("FAIL " + text[7:] + found)
                if found == " got TimedOut":
                    break
    return count


def main() -> None:
    # An infinite loop raises in the code under test: CPU time, so a busy machine changes no outcome.
    _signal.signal(_signal.SIGVTALRM, alarm)
    sys.path.append(HERE)
    failures: list[str] = []
    count = 0
    for name in sorted(posix.listdir(HERE + "/tests")):
        if name.startswith("test_"):
            try:
                count += run(HERE + "/tests/" + name, failures)
            except BaseException as error:
                count += 1
                failures.append(("FAIL " + name + " " + type(error).__name__ + " " + str(error))[:100])
    print("\n".join([*failures[:2], f"failed {len(failures)} of {count}"]) if failures else f"ok {count}")
    sys.exit(bool(failures))


main()
