#!/usr/bin/env python3
"""A residual network on pictures, with TensorGRaD in place of AdamW: convolutions and matrices are
compressed as spectral weights are.

    python3 examples/torch_convnet.py [STEPS]

The pictures are made here: waves of three orientations, two lengths, in noise.
"""
import math
import sys

import torch
import torch.nn.functional as F

import libtgrad


class Block(torch.nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = torch.nn.Conv2d(channels, channels, 3, padding=1)
        self.second = torch.nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return x + self.second(F.gelu(self.first(F.gelu(x))))


def network(channels=32):
    return torch.nn.Sequential(torch.nn.Conv2d(1, channels, 3, padding=1), Block(channels),
                               torch.nn.AvgPool2d(2), Block(channels), torch.nn.AdaptiveAvgPool2d(4),
                               torch.nn.Flatten(), torch.nn.Linear(16 * channels, 6))


def pictures(count, generator, size=16):
    """(pictures, classes)"""
    kind = torch.randint(6, (count,), generator=generator)
    angle = (kind % 3) * math.pi / 3
    wave = 2 * math.pi / torch.where(kind < 3, 4.0, 7.0)
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    phase = 2 * math.pi * torch.rand(count, 1, 1, generator=generator)
    along = torch.cos(angle)[:, None, None] * x + torch.sin(angle)[:, None, None] * y
    picture = torch.sin(wave[:, None, None] * along + phase)
    return (picture + 0.7 * torch.randn(picture.shape, generator=generator))[:, None], kind


def train(make_optimizer, steps):
    """Share of right answers, and the optimizer."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = network()
    opt = make_optimizer(model)
    for _ in range(steps):
        x, kind = pictures(64, generator)
        opt.zero_grad()
        F.cross_entropy(model(x), kind).backward()
        opt.step()
    with torch.no_grad():
        x, kind = pictures(500, generator)
        return (model(x).argmax(1) == kind).float().mean().item(), opt


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 150
    right, opt = train(lambda m: libtgrad.TensorGRaD(libtgrad.param_groups(m, second_rank=0.1),
                                                     lr=2e-3, update_proj_gap=50), steps)
    memory = opt.memory()
    print(f"TensorGRaD: {100 * right:.0f} % right, state {memory['state']} bytes")
    right, _ = train(lambda m: torch.optim.AdamW(m.parameters(), lr=2e-3, weight_decay=0), steps)
    print(f"AdamW:      {100 * right:.0f} % right, state {memory['adamw']} bytes")


main()
