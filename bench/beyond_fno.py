#!/usr/bin/env python3
"""TensorGRaD on networks that are no FNOs: a U-Net and a GPT, with generated data; state, time of a step
and test loss after equal steps, each at the better of two learning rates.

    python3 bench/beyond_fno.py [--device cuda] [--threads N] [--steps N] [--network NAME] [--compile] [--json]

Beside torch's AdamW, and the 8-bit Adam of bitsandbytes and torchao where they are installed. torchao compiles its step
for every shape, which takes longer than all the rest: without --compile it runs as it is written.
"""
import argparse
import json

import torch
from torch import nn
from torch.nn import functional

import torch_measures as measures

import libtgrad


class UNet(nn.Module):
    """Three levels, 0.27 million weights."""

    def __init__(self, channels=24):
        super().__init__()
        sizes = [channels, 2 * channels, 4 * channels]

        def block(inputs, outputs):
            return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.GELU(),
                                 nn.Conv2d(outputs, outputs, 3, padding=1), nn.GELU())

        self.down = nn.ModuleList(block(i, o) for i, o in zip([1, *sizes], sizes))
        self.up = nn.ModuleList(block(2 * size + size, size) for size in sizes[-2::-1])
        self.last = nn.Conv2d(channels, 1, 1)

    def forward(self, x):
        kept = []
        for level, block in enumerate(self.down):
            x = block(functional.avg_pool2d(x, 2) if level else x)
            kept.append(x)
        for block, skip in zip(self.up, kept[-2::-1]):
            x = block(torch.cat([functional.interpolate(x, scale_factor=2), skip], 1))
        return self.last(x)


class GPT(nn.Module):
    """Causal transformer blocks, 0.8 million weights."""

    def __init__(self, words=64, width=128, length=64, layers=4):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True,
                                           norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.last = nn.Linear(width, words)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, text):
        return self.last(self.blocks(self.words(text) + self.places, mask=self.mask, is_causal=True))


def discs(count, generator, size=32):
    """Images of discs under noise, and without it."""
    grid = torch.stack(torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")).float()
    clean = torch.zeros(count, 1, size, size)
    for _ in range(4):
        centre = size * torch.rand(count, 2, 1, 1, generator=generator)
        radius = 2 + 5 * torch.rand(count, 1, 1, generator=generator)
        inside = (grid - centre).norm(dim=1) < radius
        clean[:, 0] += inside * (torch.rand(count, 1, 1, generator=generator) - 0.5)
    return clean + 0.5 * torch.randn(clean.shape, generator=generator), clean


def sentences(count, generator, words=64, length=65):
    """Texts in which each word depends on the two before it, and the words that follow."""
    choices = torch.randint(words, (words, words, 4), generator=torch.Generator().manual_seed(7))
    text = torch.randint(words, (count, length), generator=generator)
    for at in range(2, length):
        follows = choices[text[:, at - 2] % 8, text[:, at - 1]]  # eight kinds of word before the last
        text[:, at] = follows.gather(1, torch.randint(4, (count, 1), generator=generator))[:, 0]
    return text[:, :-1], text[:, 1:]


NETWORKS = {"unet": (UNet, discs, functional.mse_loss),
            "gpt": (GPT, sentences, lambda found, text: functional.cross_entropy(found.flatten(0, 1), text.flatten()))}


def optimizers(compiles):
    """{name: function of a model and a learning rate}"""
    def ours(**keys):
        return lambda model, lr: libtgrad.TensorGRaD(libtgrad.param_groups(model, **keys), lr=lr)

    def bitsandbytes(model, lr):
        import bitsandbytes
        return bitsandbytes.optim.AdamW8bit(model.parameters(), lr=lr, weight_decay=0)

    def torchao(model, lr):
        from torchao.optim import AdamW8bit
        return AdamW8bit(model.parameters(), lr=lr, weight_decay=0)

    return {"torch.optim.AdamW": lambda model, lr: torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0),
            "bitsandbytes AdamW8bit": bitsandbytes,
            "torchao AdamW8bit" if compiles else "torchao AdamW8bit, eager": torchao,
            "libtgrad adam, 8 bits": lambda model, lr: libtgrad.TensorGRaD(
                model.parameters(), lr=lr, method="adam", state_precision="8bit"),
            "libtgrad TensorGRaD": ours(),
            "libtgrad TensorGRaD, 8 bits": ours(state_precision="8bit")}


def measure(network, make, args):
    kind, generate, loss = NETWORKS[network]
    generator = torch.Generator().manual_seed(1)
    batches = [[part.to(args.device) for part in generate(args.batch, generator)] for _ in range(args.steps)]
    x, y = (part.to(args.device) for part in generate(4 * args.batch, generator))
    best = None
    for lr in (args.lr, 3 * args.lr):
        torch.manual_seed(0)
        model = kind().to(args.device)
        try:
            opt = make(model, lr)
            found = measures.train(model, opt, lambda step: loss(model(batches[step][0]), batches[step][1]),
                                   args.steps, args.device)
        except (ImportError, AttributeError, RuntimeError) as error:
            return {"skipped": str(error).splitlines()[0]}
        with torch.no_grad():
            found.update(loss=loss(model(x), y).item(), lr=lr)
        best = found if best is None or found["loss"] < best["loss"] else best
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--network", choices=NETWORKS, help="one of them alone")
    parser.add_argument("--compile", action="store_true", help="torchao's step, which can take minutes")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.compiler.set_stance("default" if args.compile else "force_eager")
    results = {}
    for network in [args.network] if args.network else NETWORKS:
        results[network] = measures.measured(f"{network}, {args.steps} steps", optimizers(args.compile),
                                             lambda make: measure(network, make, args), "loss", args.json)
    if args.json:
        print(json.dumps({"torch": torch.__version__, "device": args.device,
                          "threads": torch.get_num_threads(), "networks": results}))


main()
