"""No way around a task is paid in namespaces. Plain processes are exempt: they isolate nothing, and say so."""

import pytest

from composer_plugin_local.plugin import composer_sandboxes
from composer_testing.contracts.sandbox_honesty import HonestyContract, manager
from composer_testing.honest_task import CASES, GRADING, VIEW
from composer_testing.honest_ways import ALONE, ENV, TAMPERING

CARELESS = {
    "conftest": "python3 -S conftest.py",
    "sitecustomize and pth": 'PYTHONPATH="$HOME" python3 .grade/run.py',
    "commands of other names": 'PATH="$HOME/bin:$PATH"; python3 .grade/run.py',
    "bytecode": "python3 -S .grade/run.py",
    "modules of the standard library": "PYTHONPATH=. python3 -S .grade/run.py",
    "visible tests": "python3 -S check.py",
    "git hooks and settings": ".git/hooks/pre-commit",
    "results beforehand": "cat report",
    "the module as a link": "python3 -S .grade/run.py",
    "the package as a link": "python3 -S .grade/run.py",
}
"""Way -> how a grader without care reports, in the agent's own sandbox."""


class TestNamespaces(HonestyContract):
    spec = next(iter(composer_sandboxes()))

    @pytest.mark.parametrize("way", CARELESS)
    def test_a_grader_without_care_pays_so_the_way_has_teeth(self, way):
        async def act(provider):
            found = []
            for script in (":", {**TAMPERING, **ALONE}[way]):
                async with await manager(provider).create(VIEW) as sandbox:
                    await sandbox.exec(["sh", "-c", script], env=ENV)
                    for file in GRADING.hidden.files:
                        await sandbox.write(file.path, file.data)
                    result = await sandbox.exec(["sh", "-c", CARELESS[way]])
                    lines = result.stdout.decode().splitlines()
                    found.append(all(f"value {index} {answer}" in lines for index, answer in enumerate(CASES.values())))
            return found

        assert self.use(act) == [False, True]
