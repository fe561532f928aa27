#!/usr/bin/env python3
"""Times of optimizer steps in PyTorch: TensorGRaD beside torch.optim.AdamW and what the package
neuraloperator has, on the weights of an FNO.

    python3 bench/torch_step.py [--device cuda] [--threads N] [--steps N] [--small] [--json]

Peak memory of a whole training step (with and without in_backward) is measured on a GPU only.
"""
import argparse
import json
import statistics

import torch

from torch_measures import now, state_bytes

import libtgrad


class Spectral(torch.nn.Module):
    """The spectral convolutions of ns128, with a linear skip; for machines without neuraloperator."""

    def __init__(self, channels, modes, layers):
        super().__init__()
        shape = (channels, channels, modes, modes // 2 + 1)
        self.modes = modes
        self.spectral = torch.nn.ParameterList(
            torch.nn.Parameter(torch.randn(shape, dtype=torch.complex64) / channels)
            for _ in range(layers))
        self.skips = torch.nn.ModuleList(torch.nn.Conv2d(channels, channels, 1) for _ in range(layers))
        self.lift = torch.nn.Conv2d(1, channels, 1)
        self.last = torch.nn.Conv2d(channels, 1, 1)

    def forward(self, x):
        x = self.lift(x)
        for weight, skip in zip(self.spectral, self.skips):
            f = torch.fft.rfft2(x, norm="forward")
            part = torch.cat([f[:, :, :self.modes // 2], f[:, :, -self.modes // 2:]], 2)
            part = torch.einsum("bixy,ioxy->boxy", part[..., :self.modes // 2 + 1], weight)
            out = torch.zeros_like(f)
            out[:, :, :self.modes // 2, :self.modes // 2 + 1] = part[:, :, :self.modes // 2]
            out[:, :, -self.modes // 2:, :self.modes // 2 + 1] = part[:, :, self.modes // 2:]
            x = torch.nn.functional.gelu(torch.fft.irfft2(out, s=x.shape[2:], norm="forward") + skip(x))
        return self.last(x)


def make_model(args):
    torch.manual_seed(0)
    channels, modes = (16, 16) if args.small else (64, 64)
    try:
        from neuralop.models import FNO
        model = FNO(n_modes=(modes, modes), hidden_channels=channels, in_channels=1, out_channels=1,
                    n_layers=4)
    except ImportError:
        model = Spectral(channels, modes, 4)
    return model.to(args.device)


def as_real(model):
    """The weights as real numbers, with gradients of their own: fused AdamW takes no complex ones."""
    params = [torch.nn.Parameter(torch.view_as_real(p.detach()) if p.is_complex() else p.detach())
              for p in model.parameters()]
    for p in params:
        p.grad = torch.randn_like(p) * 1e-3
    return params


def large(model):
    return [p for p in model.parameters() if p.is_complex()]


def optimizers(args):
    """{name: function of a model}; a name that cannot be made here is left out by `measure`."""
    def ours(**keys):
        return lambda m: libtgrad.TensorGRaD(libtgrad.param_groups(m), lr=3e-4, weight_decay=1e-4,
                                             **keys)

    def published(m):
        from neuralop.training import TensorGRaD, fno_tensorgrad_param_groups
        return TensorGRaD(fno_tensorgrad_param_groups(m, rank=0.2, sparse_ratio=0.05,
                                                      update_proj_gap=1000), lr=3e-4)

    def low_rank(m):
        from neuralop.training import AdamW
        rest = [p for p in m.parameters() if not p.is_complex()]
        return AdamW(rest, galore_params=large(m), galore_rank=0.25, galore_update_proj_gap=1000)

    return {"AdamW fused": lambda m: torch.optim.AdamW(as_real(m), lr=3e-4, fused=True),
            "AdamW foreach": lambda m: torch.optim.AdamW(m.parameters(), lr=3e-4, foreach=True),
            "libtgrad adam": ours(method="adam"),
            "libtgrad tensorgrad": ours(),
            "libtgrad tensorgrad half": ours(state_precision="half"),
            "libtgrad tensorgrad 8bit": ours(state_precision="8bit"),
            "neuraloperator TensorGRaD": published,
            "neuraloperator low rank": low_rank}


def timed(args, step, count):
    """Median of the milliseconds of single steps."""
    times = []
    for _ in range(count):
        begin = now(args.device)
        step()
        times.append(1e3 * (now(args.device) - begin))
    return statistics.median(times)


def measure(args, make):
    model = make_model(args)
    try:
        opt = make(model)
    except (ImportError, RuntimeError) as error:
        return {"skipped": str(error).splitlines()[0]}
    torch.manual_seed(1)
    for p in model.parameters():
        p.grad = torch.randn_like(p) * 1e-3
    first = timed(args, opt.step, 1)
    for _ in range(2):
        opt.step()
    return {"first_ms": first, "step_ms": timed(args, opt.step, args.steps), "state": state_bytes(opt)}


def measure_small(args, make):
    """100 parameters of 64 entries."""
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(64, device=args.device)) for _ in range(100)]
    for p in params:
        p.grad = torch.randn_like(p)
    opt = make(params)
    for _ in range(20):
        opt.step()
    return min(timed(args, opt.step, 50) for _ in range(3))


def peak(args, make):
    """Most bytes of the GPU during the third training step, and the weights among them."""
    torch.cuda.empty_cache()
    model = make_model(args)
    opt = make(model)
    x = torch.randn(args.batch, 1, 128, 128, device=args.device)
    for step in range(3):
        if step == 2:
            torch.cuda.reset_peak_memory_stats()
        opt.zero_grad()
        model(x).square().mean().backward()
        opt.step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--small", action="store_true", help="16 channels and modes")
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    result = {"torch": torch.__version__, "device": args.device, "threads": torch.get_num_threads(),
              "parameters": sum(p.numel() for p in make_model(args).parameters()), "steps": {}}
    for name, make in optimizers(args).items():
        if args.only in name:
            result["steps"][name] = measure(args, make)
            if not args.json:
                print(f"{name:28}", *[f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}"
                                      for k, v in result["steps"][name].items()], flush=True)
    result["small_us"] = {
        "AdamW fused": 1e3 * measure_small(args, lambda p: torch.optim.AdamW(p, fused=True)),
        "libtgrad": 1e3 * measure_small(args, lambda p: libtgrad.TensorGRaD(p))}
    if args.device == "cuda":
        result["peak"] = {
            "AdamW foreach": peak(args, lambda m: torch.optim.AdamW(m.parameters(), foreach=True)),
            "AdamW plain": peak(args, lambda m: torch.optim.AdamW(m.parameters(), foreach=False)),
            "libtgrad": peak(args, lambda m: libtgrad.TensorGRaD(libtgrad.param_groups(m))),
            "libtgrad in_backward": peak(args, lambda m: libtgrad.TensorGRaD(
                libtgrad.param_groups(m), in_backward=True))}
    if args.json:
        print(json.dumps(result))
    else:
        print("100 small parameters, us:", result["small_us"], "\npeak:", result.get("peak", "on a GPU only"))


main()
