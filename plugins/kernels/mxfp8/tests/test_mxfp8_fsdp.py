"""`fully_shard` over two ranks on gloo: the steps of one process, and no weights from before an optimizer's step."""

import os
import socket

import torch
import torch.distributed as dist
from mxfp8_cases import decibels, layer
from torch import multiprocessing, nn

from composer_plugin_mxfp8 import quantize_

TOKENS = 64
STEPS = 3


class Experts(nn.Module):
    """As transformers lay experts out."""

    def __init__(self):
        super().__init__()
        *_, gate_up, down = layer(width=64, expert_width=32, experts=4)
        self.gate_up_proj, self.down_proj = nn.Parameter(gate_up.detach()), nn.Parameter(down.detach())
        self.act_fn = nn.SiLU()


class Block(nn.Module):
    """A residual layer of experts; the norm's weight is a parameter that is not quantized."""

    def __init__(self):
        super().__init__()
        self.norm, self.experts = nn.RMSNorm(64), Experts()

    def forward(self, x, ids, share):
        return x + self.experts(self.norm(x), ids, share)


class Stack(nn.Module):
    """Two blocks."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x, ids, share):
        for block in self.blocks:
            x = block(x, ids, share)
        return x


def trained(model, rank, ranks):
    """The loss of each step, of the rank's share of the tokens."""
    x, ids, share, *_ = (tensor.detach() for tensor in layer(tokens=TOKENS, width=64, expert_width=32, experts=4))
    mine = slice(rank * TOKENS // ranks, (rank + 1) * TOKENS // ranks)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(STEPS):
        loss = model(x[mine], ids[mine], share[mine]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return torch.tensor(losses)


def one_of_two(rank, port, queue):
    """Child process: shard each block and the stack, as FSDP2 is used."""
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    try:
        model = quantize_(Stack())
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        losses = trained(model, rank, 2)
        dist.all_reduce(losses)
        whole = {name: parameter.full_tensor().detach() for name, parameter in model.named_parameters()}
        if rank == 0:
            queue.put((losses / 2, whole))
            queue.join()
    finally:
        dist.destroy_process_group()
    os._exit(0)  # gloo's threads free tensors when they come to it; with an interpreter half ended that aborts


def test_two_ranks_of_fsdp_train_what_one_process_trains():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    queue = context.JoinableQueue()
    children = [context.Process(target=one_of_two, args=(rank, port, queue), daemon=True) for rank in range(2)]
    for child in children:
        child.start()
    losses, whole = queue.get(timeout=90)
    losses, whole = losses.clone(), {name: value.clone() for name, value in whole.items()}
    queue.task_done()
    for child in children:
        child.join(30)
    assert [child.exitcode for child in children] == [0, 0]
    alone = quantize_(Stack())
    assert torch.allclose(losses, trained(alone, 0, 1), rtol=2e-3)
    assert losses[2] < losses[1] < losses[0]
    before, after = Stack().state_dict(), alone.state_dict()
    for name, start in before.items():
        assert decibels(after[name] - start, whole[name] - start) > 20, name
