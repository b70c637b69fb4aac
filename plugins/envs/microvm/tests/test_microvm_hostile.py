"""What a hostile command meets in machines, and whose fault that is: the public suites, and the end of the agent."""

import struct

from composer_core import ToolContext
from composer_core.types import Outcome, Trace
from composer_plugin_microvm.plugin import composer_sandboxes
from composer_testing.contracts.sandbox_verdicts import VerdictContract, episode

END = "end the agent"


async def sh(context: ToolContext, script: str) -> str:
    """Run a script; `END` is what a workload that has become root could do: process 1 goes, the kernel with it."""
    if script == END:
        context.sandbox.backend.machine.channel._transport.write(struct.pack("!II", 0xFFFFFFFF, 0))
    result = await context.sandbox.exec(["sh", "-c", "sleep 3" if script == END else script], timeout_s=10)
    return f"{result.status} {result.stdout.decode()}"


class TestQemu(VerdictContract):
    spec = next(iter(composer_sandboxes()))

    def test_what_a_command_does_to_its_agent_fails_the_episode_and_does_not_void_it(self) -> None:
        trace: Trace = self.use(lambda provider: episode(provider, END, "echo once more", run=sh))
        assert trace.verdict.outcome is Outcome.FAILED and not trace.faults, (trace.verdict, trace.faults)
        said = [result.text for turn in trace.turns for result in turn.results]
        assert said == ["lost ", "lost "]

    def test_memory_a_command_may_not_have_is_its_own_end(self) -> None:
        async def act(sandbox, provider):
            words = ["python3", "-S", "-c", "[b'x' * n for n in range(10**6, 10**7)]"]
            return await sandbox.exec(words, timeout_s=30), await sandbox.exec(["echo", "alive"])

        result, after = self.act(act)
        assert (result.status, result.exit_code, after.stdout) == ("oom", None, b"alive\n")
