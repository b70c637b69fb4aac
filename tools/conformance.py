"""Write docs/sandboxes/conformance.md from test results: which case holds for which kind of sandbox.

    python -m pytest core/tests plugins/envs --junitxml results.xml
    python tools/conformance.py results.xml [MORE.xml ...]

A case is the tests that show it, by name; a name that ends with `*` stands for all that begin so, and one in brackets
is a parameter. Nothing in the table is written by hand: a case without a test that passed is a dash.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/sandboxes/conformance.md"
CLAIM = "test_what_is_declared_is_given_and_what_is_given_is_declared"
COLUMNS = {
    "fake": (r"test_memory_sandbox", "composer_testing.fakes.plugin", "memory"),
    "process": (r"envs\.local.*(TestProcess$|test_local_process)", "composer_plugin_local.plugin", "process"),
    "namespaces": (r"envs\.local", "composer_plugin_local.plugin", "namespaces"),
    "docker": (r"envs\.docker", "composer_plugin_docker.plugin", "docker"),
    "microvm": (r"envs\.microvm\.tests\.test_microvm", "composer_plugin_microvm.plugin", "qemu"),
}
"""Column -> where its tests stand (the first that fits), hook module and name of the record."""


class Case(NamedTuple):
    says: str
    tests: tuple[str, ...]
    claims: tuple[str, ...] = ()
    """Capabilities that it is about: one that a record does not declare must be refused."""
    of_claims: tuple[str, ...] = ()
    """Tests that show nothing where none of them is declared."""


CASES = {
    "C1": Case(
        "life cycle: destroying twice, leaving a context however it is left, ids, equal templates, nothing left",
        (
            *("test_destroy*", "test_leaving_the_context*", "test_ids_are_never*", "test_equal_specs*"),
            *("test_one_sandbox_that_cannot*", "test_siblings_share*", "test_a_start_that*", "test_a_cancelled*"),
            *("test_closing*", "test_a_creation_that*", "test_what_is_probed*"),
            *("test_a_workspace_that_is_not*", "test_a_closed_provider*"),
        ),
    ),
    "C2": Case(
        "commands: words, scripts, bytes, exit codes, signals",
        (
            *(
                "test_words_of_a_command*",
                "test_an_unknown_command*",
                "test_input_and_output*",
                "test_an_empty_command*",
            ),
            *("test_exit_codes*", "test_a_file_that_is_no_program*", "test_death_by*", "test_streams_are*"),
            *("test_scripts_of*", "test_words_that_no*"),
        ),
    ),
    "C3": Case(
        "limits of commands: output, time, what they leave running",
        (
            *("test_output_is_capped*", "test_a_flood_of_output*", "test_a_timeout_*", "test_a_time_limit*"),
            *("test_a_background_child*", "test_what_a_command_leaves*", "test_commands_wait_their_turn*"),
            "test_a_command_that_nobody_waits_for*",
        ),
    ),
    "C4": Case(
        "a command whose end nobody knows is never a success",
        (
            *(
                "test_a_killed_keeper*",
                "test_an_agent_that*",
                "test_a_container_that_somebody*",
                "test_a_guest_that_talks*",
            ),
            *("test_a_machine_that_the_host_has_lost*", "test_a_command_whose_answer*", "test_a_frame_that_is_none*"),
        ),
    ),
    "C5": Case(
        "sessions: what a shell keeps, its end told, nothing forged",
        (),
        ("sandbox.sessions",),
        ("test_a_session_*", "test_sessions_are*", "test_nothing_that_a_session*", "test_a_destroyed_sandbox_has*"),
    ),
    "C6": Case(
        "files: any bytes and names, what is in the way, limits, patches",
        (
            *(
                "test_what_is_written*",
                "test_paths_that_name*",
                "test_listing*",
                "test_files_over*",
                "test_concurrent_writes*",
            ),
            *("test_the_patch_is*", "test_what_a_command_puts*", "test_a_name_that_is_no_text*", "test_folders_that*"),
            *("test_rights_that*", "test_fifos_and*", "test_a_patch_tells*", "test_what_was_only_read*"),
            "test_whiteouts*",
        ),
        ("sandbox.changes",),
    ),
    "C7": Case("environment from empty, working folder", ("test_environment_is*", "test_working_folder*")),
    "C8": Case(
        "limits of a sandbox, which answers meanwhile; whose fault that is",
        (
            *("test_a_sandbox_answers_while*", "test_what_a_command_does_to_its_*"),
            *("test_memory_a_command*", "test_a_full_disk*", "test_a_fork_bomb*", "test_a_command_over*"),
        ),
        ("sandbox.limits.memory", "sandbox.limits.processes", "sandbox.limits.file_size", "sandbox.limits.disk"),
    ),
    "C9": Case(
        "snapshots: modes, links, times, deletions; twice, and when their source is gone",
        ("test_a_fork_keeps_modes*", "test_a_fork_has_modes*", "test_snapshots_beyond*", "test_a_released_snapshot*"),
        ("sandbox.snapshots.files", "sandbox.snapshots.full"),
    ),
    "C10": Case(
        "forks: many, of forks, meanwhile, one that fails",
        (
            *("test_eight_forks*", "test_a_child_that_fails*", "test_sixty_four*", "test_a_fork_goes_on*"),
            *("test_a_parent_answers*", "test_a_command_that_runs_meanwhile*", "test_what_a_long_chain*"),
            *("test_machines_beyond*", "test_a_fork_is_counted*", "test_neither_time_nor*"),
        ),
        ("sandbox.forks",),
    ),
    "C11": Case("clones: randomness, identity, clock", ("test_clones_differ*", "test_a_clone_that_does_not*")),
    "C12": Case(
        "pauses: nothing runs, time stands still",
        (),
        ("sandbox.pauses",),
        ("test_nothing_runs_in_a_paused*", "test_a_paused_sandbox*"),
    ),
    "C13": Case(
        "network: none but loopback, or what is allowed, replaced while it is used",
        ("test_there_is_loopback*",),
        ("sandbox.networks",),
        (
            *("test_a_connection_ends_when*", "test_variables_name_a_proxy*", "test_an_allowed_host_answers*"),
            "test_localhost_is*",
            *("test_a_policy_is_one*", "test_a_command_that_holds_the_port*", "test_nothing_is_left_of_connections*"),
        ),
    ),
    "C14": Case(
        "leases, orphans, killed controllers",
        (
            *(
                "test_a_killed_controller*",
                "test_machines_end_with*",
                "test_what_a_killed_server*",
                "test_an_owner_is_told*",
            ),
            *("test_a_silent_client*", "test_a_process_belongs*"),
        ),
        ("sandbox.leases",),
    ),
    "C15": Case(
        "load: thousands come and go, nobody waits for another's command, lines are fair",
        (
            *("test_nothing_stays_of*", "test_a_long_command*", "test_more_than_fit*", "test_whoever_gives_up*"),
            *(
                "test_the_refused*",
                "test_starts_are_capped*",
            ),
        ),
    ),
    "C16": Case("lints and every other tool: one trace everywhere", ("test_the_episode_gives*",)),
    "C17": Case("what the fake needs to stand in for them", ("test_concurrent_writes*", "test_the_patch_is*")),
    "S1": Case(
        "files of the host",
        (
            *(
                "test_no_file_of_the_host*",
                "test_links_out_of*",
                "test_a_folder_that_keeps*",
            ),
            *("test_packages_that*", "test_the_base_of_this*", "test_nothing_but_workspace*", "test_system_folders*"),
        ),
        ("sandbox.isolates",),
    ),
    "S2": Case(
        "bombs, floods, fillings",
        (
            *(
                "test_a_sandbox_answers_while*",
                "test_sparse_files*",
                "test_a_bomb_of_threads*",
            ),
            "test_descriptors_are*",
        ),
    ),
    "S3": Case(
        "powers, devices, settings, sockets",
        (
            *("test_no_power_is_held*", "test_devices_and_settings*", "test_no_descriptor*", "test_no_right_is*"),
            *("test_calls_that_would*", "test_a_command_has_no_power*"),
        ),
    ),
    "S4": Case(
        "neighbors",
        (
            *("test_siblings_see*", "test_processes_*siblings*", "test_tmp_is_private*", "test_siblings_share*"),
            *("test_one_clients_sandboxes*", "test_what_clones_are_made_of*"),
        ),
    ),
    "S5": Case(
        "the agent's line: malformed, huge, forged; an agent under attack",
        (
            *(
                "test_bytes_*",
                "test_frames_*",
                "test_headers_*",
                "test_a_frame_that*",
                "test_a_channel_*",
                "test_replies_*",
            ),
            *("test_answers_to*", "test_what_is_no_frame*", "test_the_agent_and_its*", "test_a_guest_that_talks*"),
            *("test_what_qemu_says*", "test_bodies_that*", "test_killing_everything*"),
        ),
    ),
    "S6": Case(
        "secrets",
        (
            *("test_environment_is*", "test_nothing_of_this_process*", "test_without_the_token*", "test_a_token_that*"),
            "test_a_missing_token*",
        ),
    ),
    "S7": Case("ways out: metadata, names, IPv6, raw sockets", ("test_there_is_loopback*", "test_no_power_is_held*")),
    "S8": Case(
        "rewards: no way around a task is paid",
        (
            *("test_tampering_*", "test_code_under_test*", "test_the_answer_is_nowhere*", "test_a_workspace_holds*"),
            "test_the_repair_is_paid*",
        ),
    ),
    "S9": Case(
        "the monitor",
        (
            "test_qemu_runs_as*",
            "test_what_clones_are_made_of*",
            "test_machines_end_with*",
            "test_a_machine_that_was_booted*",
        ),
    ),
}
HEAD = """# What holds where

Every kind of sandbox is tried on the same cases. The numbers are tests that passed, in runs of
`make test`'s suites; *not declared* means that the kind does not promise what the case is about, and that asking for it
raises `Unsupported` (a test); a dash, that there is no test, because the case is about something that the kind does not
have. The page is made from the results: `python tools/conformance.py RESULTS.xml`. What stands behind an environment
server passes the same contract through it; frames that namespaces and containers share are fuzzed in `composer-envkit`.

`local/process` isolates nothing, and is exempt from what needs walls. The machines of `microvm` ran under TCG; forks
were tried with KVM too, [as far as it goes here](microvm.md#what-was-tried-with-kvm-and-what-was-not).
`microvm/firecracker` is not in the table: its page says what it was tried against.
"""
TAIL = """
## Your own sandboxes
The suites are public: subclass `CommandContract` (C1 to C14; `OptionalContract` has C5, C12 and C13),
`VerdictContract` (C8, S1 to S4, S6, S7), `HonestyContract` (S8), `ReplayContract` (C16) and `ChurnContract` (C15) of
`composer_testing.contracts` and name your record. What your record does not declare must be refused, what it declares
is tried.

## One trace everywhere
A scripted episode calls every tool, runs a test that fails and one that passes, and meets errors, limits, signals,
links and odd bytes. Its trace is equal byte for byte in memory, namespaces, containers and machines, after one
filter (`composer_testing.replay.without_durations`): each number whose name ends in `_s`, a time in seconds, is set
to 0. Rewards are compared unfiltered. Plain processes are exempt: their workspace has another path, and their
commands are another user's.

## No way around a task is paid
An agent's patch is graded in a fresh sandbox of the pristine workspace: only regular files outside the task's
protected patterns arrive, then the grader's own. The suite tries each way with a forger who *knows the answers*, so
whatever is let in is paid: edited tests, conftest, sitecustomize, `.pth`, settings, git hooks, commands of the same
name, bytecode, modules that shadow the standard library, planted graders (as files, links, folders, pipes), planted
results, a daemon that rewrites what it finds, full disks, withdrawn rights. Code under test exits, kills, hangs,
forks, fills, forges, and searches files, packages, git objects and other processes for the answer. Nothing may be
paid, and nothing may make an episode void, which would give another try. The walls are tried first, by harmless
means; nothing else is run where they do not hold.

A workspace holds its tree and nothing else: no history, no caches, no bytecode. Of a repository it is
[one fresh commit](../bring-a-task.md#tasks-of-repositories). A task's own tree is looked through by `TaskContract` for
what may hold an answer.
"""


class Result(NamedTuple):
    column: str
    name: str
    passed: bool


def results(files: list[Path]) -> list[Result]:
    """Of a test that stands in several files, the last counts."""
    found = {}
    for file in files:
        for case in ElementTree.parse(file).iter("testcase"):
            place, name = case.get("classname", ""), case.get("name", "")
            column = next((column for column, (where, *_) in COLUMNS.items() if re.search(where, place)), "")
            passed = not any(case.find(tag) is not None for tag in ("failure", "error", "skipped"))
            if column:
                found[place, name] = Result(column, name, passed)
    return list(found.values())


def declared() -> dict[str, frozenset[str]]:
    """Column -> capabilities of its record."""
    found = {}
    for column, (_, module, name) in COLUMNS.items():
        (spec,) = (spec for spec in import_module(module).composer_sandboxes() if spec.name == name)
        found[column] = spec.capabilities
    return found


def cell(case: Case, rows: list[Result], capabilities: frozenset[str]) -> str:
    tests = (*case.tests, *(case.of_claims if set(case.claims) & capabilities else ()))
    plain = [row for row in rows if any(fnmatchcase(row.name.partition("[")[0], test) for test in tests)]
    offered = [f"{CLAIM}[{claim}]" for claim in case.claims if claim in capabilities]
    counted = Counter(row.passed for row in [*plain, *(row for row in rows if row.name in offered)])
    names = {f"{CLAIM}[{claim}]" for claim in case.claims if claim not in capabilities}
    missing = [row for row in rows if row.name in names and row.passed]
    if counted[False]:
        return f"**{counted[True]} of {counted.total()}**"
    return str(counted[True]) if counted[True] else "not declared" if missing else "–"


def page(found: list[Result], capabilities: dict[str, frozenset[str]]) -> str:
    lines = [HEAD, f"| | | {' | '.join(COLUMNS)} |", f"|---|---|{'---|' * len(COLUMNS)}"]
    for name, case in CASES.items():
        rows = {column: [row for row in found if row.column == column] for column in COLUMNS}
        cells = [cell(case, rows[column], capabilities[column]) for column in COLUMNS]
        lines.append(f"| {name} | {case.says} | {' | '.join(cells)} |")
    return "\n".join([*lines, TAIL])


def main() -> None:
    PAGE.write_text(page(results([Path(word) for word in sys.argv[1:]]), declared()), encoding="utf-8")


if __name__ == "__main__":
    main()
