"""AdamW, its schedule, and the gradient between backward and update.

Gradients are summed over ranks, never averaged: the loss is already divided by constants of the whole step, so the
sum over micro-batches and ranks is the gradient. This is why the policy is not wrapped in DistributedDataParallel,
which averages and expects every rank to run the same number of passes. All gradients exist (as zeros) before the
first backward, so a parameter that no token reached is updated alike however the batch was cut.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from composer_core.errors import StoreError
from composer_plugin_policy.config import StageSettings


def make_optimizer(model: torch.nn.Module) -> torch.optim.AdamW:
    """AdamW in two groups: weights with two or more axes, which may decay, and the rest. Rates come with each step."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for _, p in named if p.ndim >= 2], "decays": True},
        {"params": [p for _, p in named if p.ndim < 2], "decays": False},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], fused=True)


def learning_rate(settings: StageSettings, updates: int, progress: float) -> float:
    """The rate of the stage's update number `updates` (from 0), `progress` of the stage done."""
    rate = settings.learning_rate
    if settings.schedule != "constant":
        floor = settings.final_learning_rate_share
        done = min(1.0, max(0.0, progress))
        fall = 1 - done if settings.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
        rate *= floor + (1 - floor) * fall
    if updates < settings.warmup_steps:
        rate *= (updates + 1) / settings.warmup_steps
    return rate


def apply_settings(optimizer: torch.optim.Optimizer, settings: StageSettings, rate: float) -> None:
    """Set what this step's update uses."""
    for group in optimizer.param_groups:
        group["lr"] = rate
        group["betas"] = (settings.adam_beta1, settings.adam_beta2)
        group["eps"] = settings.adam_epsilon
        group["weight_decay"] = settings.weight_decay if group["decays"] else 0.0


def zero_gradients(parameters: list[torch.nn.Parameter]) -> None:
    """Every parameter has a gradient of zeros."""
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        else:
            parameter.grad.zero_()


def gradients(parameters: list[torch.nn.Parameter]) -> list[torch.Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def clip(grads: list[torch.Tensor], limit: float) -> float:
    """Scale gradients in place to a whole norm of at most `limit` (0: leave them); returns the norm before."""
    norm = float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(grad.float()) for grad in grads])))
    if limit and math.isfinite(norm) and norm > limit:
        for grad in grads:
            grad.mul_(limit / norm)
    return norm


def state_tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The optimizer's state as "field.parameter" -> tensor; empty before the first update."""
    return {
        f"{field}.{name}": value
        for name, parameter in model.named_parameters()
        for field, value in sorted(optimizer.state.get(parameter, {}).items())
    }


def load_state_tensors(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor]
) -> None:
    """The inverse of `state_tensors`.

    Raises:
        StoreError: a tensor belongs to no parameter of this model.
    """
    parameters = dict(model.named_parameters())
    optimizer.state.clear()
    for key, tensor in tensors.items():
        field, _, name = key.partition(".")
        if name not in parameters:
            raise StoreError("a saved optimizer does not belong to this policy", found=key)
        optimizer.state[parameters[name]][field] = tensor.to(parameters[name].device)
