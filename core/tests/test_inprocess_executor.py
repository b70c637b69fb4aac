"""The built-in executor and context keep their contracts, on fakes."""

from pathlib import Path

from composer_core.config import InProcessConfig
from composer_core.context import Plain
from composer_core.executor import InProcessExecutor
from composer_core.protocols import BuildContext
from composer_core.records import NoConfig
from composer_testing.contracts.contexts import ContextContract
from composer_testing.contracts.executors import ExecutorContract


class TestPlain(ContextContract):
    def build(self):
        return Plain(NoConfig(), BuildContext(Path()))


class TestInProcess(ExecutorContract):
    def build(self, context):
        return InProcessExecutor(InProcessConfig(), context)


class TestInProcessOneByOne(ExecutorContract):
    def build(self, context):
        return InProcessExecutor(InProcessConfig(max_concurrent=1), context)
