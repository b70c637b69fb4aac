"""The torch side of the contract (extra `composer-core[torch]`); nothing else in core imports it.

`policy` says what a policy network must do, `kernels` gives one Protocol per kernel op, `logprobs` is the one
implementation of token log-probabilities that sampler and trainer share, `convert` and `noise` bridge to core's
columns and counter-based noise, `threads` keeps a process to one team of helpers.
"""

from composer_core.tensors.convert import to_column, to_tensor
from composer_core.tensors.kernels import Experts
from composer_core.tensors.logprobs import token_logprobs
from composer_core.tensors.noise import signed, uniform
from composer_core.tensors.objective import ObjectiveInputs
from composer_core.tensors.policy import KVCache, PolicyModel, PolicyOutput, RouteShape
from composer_core.tensors.threads import one_thread

__all__ = [
    "Experts",
    "KVCache",
    "ObjectiveInputs",
    "PolicyModel",
    "PolicyOutput",
    "RouteShape",
    "one_thread",
    "signed",
    "to_column",
    "to_tensor",
    "token_logprobs",
    "uniform",
]
