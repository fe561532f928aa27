#!/usr/bin/env python3
"""Optimizers of the package neuraloperator beside libtgrad's: state, time of a step, and test error of
its FNO after equal steps, each at the better of two learning rates.

    python3 bench/compare_upstream.py [--device cuda] [--threads N] [--steps N] [--large] [--json]

The data are made here: Darcy flow, and vorticity of Navier-Stokes. --large: the network of ns128 (64
channels, 64 x 64 modes) on a grid of 128, for a GPU.
"""
import argparse
import json

import torch

import torch_measures as measures

import libtgrad

PROBLEMS = {"darcy": {"grid": 63}, "ns": {"reynolds": 500}}


def data(equation, args):
    size = 128 if args.large else 32
    keys = {} if args.large else PROBLEMS[equation]
    sets = [libtgrad.generate(equation, n, size, progress=False, test=test, **keys)
            for n, test in ((args.samples, False), (args.samples // 4, True))]
    x, y, x_test, y_test = (torch.from_numpy(array).float().to(args.device) for pair in sets for array in pair)
    scales = [(values.mean(), values.std()) for values in (x, y)]
    return [(values - mean) / std for values, (mean, std) in zip((x, y, x_test, y_test), scales * 2)]


def make_model(args):
    from neuralop.models import FNO
    torch.manual_seed(0)
    channels, modes = (64, 64) if args.large else (24, 16)
    return FNO(n_modes=(modes, modes), hidden_channels=channels, in_channels=1, out_channels=1,
               n_layers=4).to(args.device)


def optimizers():
    """{name: function of a model and a learning rate}"""
    def split(model):
        return [[p for p in model.parameters() if p.is_complex() == is_complex] for is_complex in (True, False)]

    def galore(kind):
        def make(model, lr):
            spectral, rest = split(model)
            return kind(rest, galore_params=spectral, galore_rank=0.25, galore_update_proj_gap=50, lr=lr)
        return make

    def upstream_galore(model, lr):
        from neuralop.training.adamw import AdamW
        return galore(AdamW)(model, lr)

    def grouped(kind, groups):
        return lambda model, lr: kind(groups(model, rank=0.25, sparse_ratio=0.05), lr=lr, eps=1e-6)

    def upstream_tensorgrad(model, lr):
        from neuralop.training import TensorGRaD, fno_tensorgrad_param_groups
        return grouped(TensorGRaD, fno_tensorgrad_param_groups)(model, lr)

    def ours(**keys):
        return lambda model, lr: libtgrad.TensorGRaD(libtgrad.param_groups(model, **keys), lr=lr)

    return {"torch.optim.AdamW": lambda model, lr: torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0),
            "neuraloperator AdamW, galore_rank=0.25": upstream_galore,
            "libtgrad, the same arguments": galore(libtgrad.TensorGRaD),
            "neuraloperator TensorGRaD": upstream_tensorgrad,
            "libtgrad, the same groups": grouped(libtgrad.TensorGRaD, libtgrad.fno_tensorgrad_param_groups),
            "libtgrad TensorGRaD": ours(),
            "libtgrad TensorGRaD, 8 bits": ours(state_precision="8bit")}


def relative(found, expected):
    return ((found - expected).flatten(1).norm(dim=1) / expected.flatten(1).norm(dim=1)).mean()


def measure(make, sets, args):
    x, y, x_test, y_test = sets
    best = None
    for lr in (args.lr, 3 * args.lr):
        model = make_model(args)
        try:
            opt = make(model, lr)
        except ImportError as error:
            return {"skipped": str(error)}
        torch.manual_seed(1)
        order = [torch.randint(len(x), (args.batch,), device=args.device) for _ in range(args.steps)]
        found = measures.train(model, opt, lambda step: relative(model(x[order[step]]), y[order[step]]),
                               args.steps, args.device)
        with torch.no_grad():
            found.update(error=relative(model(x_test), y_test).item(), lr=lr)
        best = found if best is None or found["error"] < best["error"] else best
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--large", action="store_true", help="the network of ns128")
    parser.add_argument("--problem", choices=PROBLEMS, help="one of them alone")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    results = {}
    for problem in [args.problem] if args.problem else PROBLEMS:
        sets = data(problem, args)
        results[problem] = measures.measured(f"{problem}, {args.steps} steps", optimizers(),
                                             lambda make: measure(make, sets, args), "error", args.json)
    if args.json:
        print(json.dumps({"torch": torch.__version__, "device": args.device,
                          "threads": torch.get_num_threads(), "problems": results}))


main()
