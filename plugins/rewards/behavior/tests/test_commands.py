"""Which program a command's exit code speaks for, and which of its parts may change files: read from its text alone."""

import time

import pytest

from composer_plugin_behavior.commands import changing, judged_by
from composer_plugin_behavior.config import ClaimsConfig

TESTS, RUFF = ClaimsConfig().runs_tests, r"\bruff check\b"


@pytest.mark.parametrize(
    "command",
    [
        "pytest -q",
        "cd src && python -m pytest -q",
        "CI=1 timeout 60 uv run pytest -k 'a or b' 2>&1 && echo done",
        "pytest -q  # all of them\n# and that is it",
        "sed -i s/1/2/ a.py && pytest",
        "source .venv/bin/activate; PYTHONPATH=src pytest -n 4 -l",
        "cat > test_a.py <<'EOF'\nexit\nEOF\npytest test_a.py",
        "tox -e py311",
        "go test ./...",
        "make test",
        "python -m pkg.tests",
        "sh test.sh",
    ],
)
def test_a_run_of_the_tests_is_recognized(command):
    assert judged_by(command, TESTS)


@pytest.mark.parametrize(
    "command",
    [
        "PYTEST_ADDOPTS=--co pytest",
        "PYTEST_ADDOPTS='--co' pytest",
        "export PYTEST_ADDOPTS=--co && pytest",
        "PATH=.:$PATH pytest",
        "pytest -o 'addopts=--co'",
        'pytest "--co"',
        "pytest --fixtures",
        "pytest --setup-plan",
        "pytest --cache-show",
        "pytest --markers",
        "tox -l",
        "tox list",
        "nox --list",
        "go test -run NONE ./...",
        "go test -list=. ./...",
        "cargo test --no-run",
        "make -n test",
        "make test -n",
        "npm run test --if-present",
        "exit 0 && pytest",
        "exit 0; pytest",
        "exec true && pytest",
        "trap 'exit 0' EXIT && pytest",
        "trap 'exit 0' EXIT; pytest",
        "pytest() { true; }; pytest",
        "alias pytest=true\npytest",
        "true || pytest",
        "true || (true; pytest)",
        "cat <<pytest\npytest",
        "cat <<END\npytest",
    ],
)
def test_what_runs_no_test_or_hides_its_code_is_no_run_of_the_tests(command):
    assert not judged_by(command, TESTS)


@pytest.mark.parametrize("command", ["ruff check", "ruff check src --no-cache", "python -m ruff check -q ."])
def test_a_run_of_the_linter_is_recognized(command):
    assert judged_by(command, RUFF)


@pytest.mark.parametrize(
    "options",
    ["-e", "'-qe'", "--exit-zero", "--ignore ALL", "--select=E999", "--exclude src", "--diff", "--add-noqa"],
)
def test_a_linter_that_is_told_to_look_away_judges_nothing(options):
    assert not judged_by(f"ruff check {options} .", RUFF)


@pytest.mark.parametrize("command", ["sh test.sh", "./test.sh", "bash ./ci/test.sh", "cd ci && sh test.sh"])
def test_a_script_that_the_episode_has_written_judges_nothing(command):
    assert judged_by(command, TESTS, own={"other.sh"})
    assert not judged_by(command, TESTS, own={"test.sh", "ci/test.sh"})


@pytest.mark.parametrize(
    "command",
    [
        "cat src/a.py",
        "cd src && grep -n '> x' a.py | head -5",
        "sed -n '1,20p' src/a.py",
        "git diff src/a.py 2>/dev/null",
        "git add src/a.py && git commit -m 'x > y'",
        "find . -name '*.py'",
        "ls  # > src/a.py",
    ],
)
def test_a_command_that_only_looks_changes_nothing(command):
    assert changing(command) == ""


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ("cat b.py && sed -i s/1/2/ src/a.py", "sed -i s/1/2/ src/a.py"),
        ("cat b.py > src/a.py", "cat b.py > src/a.py"),
        ("cat > src/a.py <<'EOF'\nx = 1\nEOF", "cat > src/a.py <<'EOF'\nx = 1\nEOF"),
        ("echo x | tee 'src/a.py'", "tee 'src/a.py'"),
        ("sed -n '1,20p' -i src/a.py", "sed -n '1,20p' -i src/a.py"),
        ("find . -name a.py -delete", "find . -name a.py -delete"),
        ('cat "$(sed -i s/1/2/ src/a.py)"', 'cat "$(sed -i s/1/2/ src/a.py)"'),
        ("git checkout src/a.py; ls", "git checkout src/a.py"),
        ("python - <<END\nopen('src/a.py', 'w')\nEND", "python - <<END\nopen('src/a.py', 'w')\nEND"),
    ],
)
def test_the_parts_of_a_command_that_may_change_files_are_found(command, part):
    assert changing(command) == part


def test_runs_of_harmless_programs_and_what_stands_before_a_run_are_left_out():
    assert changing("ls && pytest src/a.py", harmless=[TESTS]) == ""
    assert changing("touch a && pytest && touch b", after=TESTS) == "touch b"


@pytest.mark.parametrize("piece", ["<<a\n", "'", '"', "\\", "# ", "$(", "(", "x=1 ", "sed -n 1p ", "env "])
def test_commands_of_any_length_are_read_in_no_time(piece):
    start = time.monotonic()
    judged_by(piece * (60_000 // len(piece)) + "pytest", TESTS)
    changing(piece * (60_000 // len(piece)))
    assert time.monotonic() - start < 5.0
