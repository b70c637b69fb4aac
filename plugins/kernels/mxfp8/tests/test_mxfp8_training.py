"""A toy language model with experts learns in MXFP8 what it learns in bf16: three seeds, the last 100 steps compared.

The language is a random chain in which two tokens decide the next, so there is something to learn and a floor to reach.
"""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, grouped_mm, rms_norm, silu

from composer_plugin_mxfp8 import mxfp8_experts

VOCABULARY, WIDTH, EXPERT_WIDTH, EXPERTS, CHOSEN = 32, 64, 32, 8, 2
STEPS, LAST, BATCH = 200, 100, 256
GAP = 0.01
"""Nats between the means of the last steps."""


def bf16_experts(x_ND, ids_NK, weights_NK, gate_up_E2FD, down_EDF):
    """The same layer with every operand in bf16 and sums in fp32, as a GPU has it."""
    flat_P = ids_NK.reshape(-1)
    order_P = flat_P.argsort(stable=True)
    ends_E = torch.bincount(flat_P, minlength=EXPERTS).cumsum(0).int()
    x_PD, gate_up, down = (t.bfloat16().float() for t in (x_ND[order_P // CHOSEN], gate_up_E2FD, down_EDF))
    gate, up = grouped_mm(x_PD, gate_up.transpose(1, 2), offs=ends_E).bfloat16().float().chunk(2, -1)
    out_PD = grouped_mm((silu(gate) * up).bfloat16().float(), down.transpose(1, 2), offs=ends_E)
    return (out_PD[order_P.argsort()].view(*ids_NK.shape, WIDTH) * weights_NK[..., None]).sum(1)


class Toy(nn.Module):
    """Two layers of experts over the sum of two embeddings."""

    def __init__(self, experts):
        super().__init__()
        self.experts = experts
        self.embed = nn.Parameter(torch.randn(2, VOCABULARY, WIDTH))
        self.routers = nn.Parameter(torch.randn(2, EXPERTS, WIDTH) * WIDTH**-0.5)
        self.gate_up = nn.ParameterList([*torch.randn(2, EXPERTS, 2 * EXPERT_WIDTH, WIDTH) * WIDTH**-0.5])
        self.down = nn.ParameterList([*torch.randn(2, EXPERTS, WIDTH, EXPERT_WIDTH) * EXPERT_WIDTH**-0.5])
        self.head = nn.Parameter(torch.randn(VOCABULARY, WIDTH) * WIDTH**-0.5)
        self.load_E = torch.zeros(EXPERTS)

    def forward(self, two_N2):
        x_ND = self.embed[0, two_N2[:, 0]] + self.embed[1, two_N2[:, 1]]
        for router, gate_up, down in zip(self.routers, self.gate_up, self.down, strict=True):
            normed_ND = rms_norm(x_ND, (WIDTH,))
            weights_NK, ids_NK = (normed_ND @ router.T).softmax(-1).topk(CHOSEN)
            self.load_E += torch.bincount(ids_NK.reshape(-1), minlength=EXPERTS)
            x_ND = x_ND + self.experts(normed_ND, ids_NK, weights_NK, gate_up, down)
        return rms_norm(x_ND, (WIDTH,)) @ self.head.T


def learned(experts, seed):
    """The loss of each of the last steps, and each expert's share of the tokens."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        language = (torch.randn(VOCABULARY, VOCABULARY, VOCABULARY) * 2).softmax(-1)
        model, losses = Toy(experts), []
        optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.0)
        for _ in range(STEPS):
            two_N2 = torch.randint(VOCABULARY, (BATCH, 2))
            following_N = torch.multinomial(language[two_N2[:, 0], two_N2[:, 1]], 1)[:, 0]
            loss = cross_entropy(model(two_N2), following_N)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    return torch.tensor(losses), model.load_E / model.load_E.sum()


@pytest.fixture(scope="module")
def runs():
    return [(learned(bf16_experts, seed), learned(mxfp8_experts, seed)) for seed in range(3)]


def test_the_loss_is_that_of_bf16(runs):
    gaps = torch.stack([ours[-LAST:].mean() - theirs[-LAST:].mean() for (theirs, _), (ours, _) in runs])
    finals = torch.stack([theirs[-LAST:].mean() for (theirs, _), _ in runs])
    assert float(gaps.mean()) <= GAP
    assert float(gaps.abs().max()) <= float(finals.max() - finals.min()), "less than a seed makes"
    for (theirs, _), (ours, _) in runs:
        assert ours.isfinite().all() and theirs[-LAST:].mean() < theirs[:10].mean() - 0.5, "something was learned"
        assert not torch.equal(ours, theirs)


def test_experts_are_chosen_as_often(runs):
    for (_, theirs), (_, ours) in runs:
        assert float((ours - theirs).abs().max()) < 0.02
