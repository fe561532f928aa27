#!/usr/bin/env python3
"""Step time and memory of tgrad beside PyTorch's FNO (package neuraloperator) on many shapes, in one run.

    pip install torch neuraloperator
    bench/shapes.py                                  every shape below, on the CPU with two threads
    bench/shapes.py --tgrad build-cuda/bin/tgrad --backend cuda
    bench/shapes.py --only 'ns128|1-D' --json        shapes whose name matches
    bench/shapes.py --shape '2-D c40 m12 50x70 b3'   any shape
    bench/shapes.py --only ns128 --tucker 0.1        Tucker weights with that share of the parameters

A shape is dimensions, channels, modes, grid and batch, and where they are not 4 and 1 the layers and the fields.
Both sides train one batch of random data: forward, loss, backward, update. PyTorch runs Adam (with --low-rank
neuraloperator's Adam on Tucker cores), tgrad runs Adam (--opt lowrank) and TensorGRaD. Times are medians after a
warm-up. Each measurement has a process of its own; PyTorch's memory is the growth of its peak from before the
model is made, or what it allocates on the GPU. On a GPU both multiply in TF32 (--math fp32: in f32).
"""
import argparse
import json
import math
import os
import re
import resource
import statistics
import subprocess
import sys
import time

SHAPES = {  # the presets of `tgrad bench step`, then others
    "ns128": "2-D c64 m64 128x128 b8 h1 projection4",
    "ns1024": "2-D c128 m128 1024x1024 b2 projection4",
    "darcy421": "2-D c128 m64 421x421 b2 projection1",
    "burgers": "1-D c256 m90 128 b16 h1 projection1",
    **{shape: shape for shape in (
        "1-D c64 m64 1024 b32", "1-D c256 m256 8192 b16", "1-D c40 m33 500 b8",
        "2-D c24 m17 67x101 b8", "2-D c32 m16 64x64 b16", "2-D c48 m24 96x96 b8", "2-D c64 m32 256x256 b4",
        "2-D c96 m40 160x240 b4", "2-D c128 m64 512x512 b2", "2-D c180 m48 360x720 b1 layers6 fields20",
        "2-D c256 m32 128x128 b4", "2-D c320 m20 64x64 b4",
        "3-D c32 m16 64x64x64 b2", "3-D c40 m24 96x96x96 b1", "3-D c64 m32 128x128x128 b1")},
}


def parse(text):
    """The numbers of a shape's text: 2-D c64 m32 256x256 b4."""
    words = text.split()
    shape = {"dims": int(words[0].rstrip("-D")), "loss": "l2", "layers": 4, "fields": 1, "projection": 2}
    for word in words[1:]:
        match = re.fullmatch(r"([a-z]+)(\d+)", word)
        if word in ("l2", "h1"):
            shape["loss"] = word
        elif match:
            names = {"c": "channels", "m": "modes", "b": "batch"}
            shape[names.get(match[1], match[1])] = int(match[2])
        else:
            shape["grid"] = [int(n) for n in word.split("x")]
    if len(shape["grid"]) != shape["dims"] or not {"channels", "modes", "batch"} <= shape.keys():
        sys.exit(f"'{text}' is no shape, such as '2-D c64 m32 256x256 b4'")
    return shape


def optimizer_of(model, low_rank):
    import torch
    if low_rank is None:
        return torch.optim.Adam(model.parameters(), lr=1e-3)
    from neuralop.training import AdamW
    rest = [p for p in model.parameters() if not p.is_complex()]
    large = [p for p in model.parameters() if p.is_complex()]
    return AdamW(rest, lr=1e-3, galore_params=large, galore_rank=low_rank, galore_update_proj_gap=1000)


def pytorch(args):
    """Measures one shape in this process."""
    import torch
    from neuralop.losses import H1Loss, LpLoss
    from neuralop.models import FNO

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = args.math == "tf32"
    on_gpu = args.backend == "cuda"
    device = "cuda" if on_gpu else "cpu"
    shape = parse(args.shape)

    def peak():
        return torch.cuda.max_memory_allocated() if on_gpu else \
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def now():
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    x, y = (torch.randn(shape["batch"], shape["fields"], *shape["grid"], device=device) for _ in range(2))
    before = peak()
    weights = dict(factorization="tucker", rank=args.tucker, implementation="factorized") if args.tucker else {}
    model = FNO(n_modes=[shape["modes"]] * shape["dims"], in_channels=shape["fields"], out_channels=shape["fields"],
                hidden_channels=shape["channels"], n_layers=shape["layers"], lifting_channel_ratio=2,
                projection_channel_ratio=shape["projection"], **weights).to(device)
    loss = (H1Loss if shape["loss"] == "h1" else LpLoss)(d=shape["dims"])
    adam = optimizer_of(model, args.low_rank)
    passes, updates = [], []
    for step in range(args.steps + 2):
        start = now()
        adam.zero_grad(set_to_none=True)
        loss(model(x), y).backward()
        middle = now()
        adam.step()
        if step >= 2:
            passes.append(1e3 * (middle - start))
            updates.append(1e3 * (now() - middle))
    return {"version": torch.__version__, "forward_backward": statistics.median(passes),
            "optimizer": statistics.median(updates),
            "step": statistics.median(a + b for a, b in zip(passes, updates)), "peak": peak() - before,
            "parameters": sum(q.numel() * (2 if q.is_complex() else 1) for q in model.parameters())}


def tgrad(args, text):
    shape = parse(text)
    first = "adam" if args.low_rank is None else "lowrank"
    command = [args.tgrad, "bench", "step", "--opt", f"{first},tensorgrad", "--threads", str(args.threads), "--steps",
               str(args.steps), "--backend", args.backend, "--math", args.math, "--json", "--batch",
               str(shape["batch"]), "--data.train_resolution", "x".join(map(str, shape["grid"])),
               "--fno.n_modes", ",".join([str(shape["modes"])] * shape["dims"]),
               "--fno.hidden_channels", str(shape["channels"]), "--fno.n_layers", str(shape["layers"]),
               "--fno.in_channels", str(shape["fields"]), "--fno.out_channels", str(shape["fields"]),
               "--fno.lifting_channel_ratio", "2", "--fno.projection_channel_ratio", str(shape["projection"]),
               "--opt.training_loss", shape["loss"]]
    if args.tucker:
        command += ["--fno.factorization", "Tucker", "--fno.rank", str(args.tucker)]
    if args.low_rank is not None:
        command += ["--opt.rank", str(args.low_rank)]
    command += [word for word in args.extra if word != "--"]
    report = json.loads(run(command))
    dense, compressed = report["optimizers"]
    return report["parameters"], [{**one["ms"], "peak": one["memory"]["peak"]} for one in (dense, compressed)]


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout.splitlines()[-1] if "--one" in command else done.stdout


def measure(args, name, text):
    theirs = json.loads(run([sys.executable, __file__, "--one", "--shape", text, "--backend", args.backend, "--threads",
                             str(args.threads), "--steps", str(args.steps), "--math", args.math]
                            + (["--tucker", str(args.tucker)] if args.tucker else [])
                            + (["--low-rank", str(args.low_rank)] if args.low_rank is not None else [])))
    parameters, (dense, compressed) = tgrad(args, text)
    if parameters != theirs["parameters"] and not args.tucker: # ranks are rounded differently
        sys.exit(f"{name}: networks of {theirs['parameters']} and {parameters} parameters")
    return {"name": name, "shape": text, "pytorch": theirs, "adam": dense, "tensorgrad": compressed,
            "speed_ratio": theirs["step"] / dense["step"], "memory_ratio": theirs["peak"] / dense["peak"],
            "overhead": compressed["step"] / dense["step"] - 1}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tgrad", default="build/bin/tgrad")
    parser.add_argument("--backend", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--only", default="", metavar="REGEX", help="shapes whose name matches")
    parser.add_argument("--shape", help="this shape alone")
    parser.add_argument("--math", default="tf32", choices=["tf32", "fp32"])
    parser.add_argument("--tucker", type=float, metavar="RANK", help="Tucker weights of this share of the parameters")
    parser.add_argument("--low-rank", type=float, metavar="SHARE", help="Adam on Tucker cores of this share")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("extra", nargs="*", help="after --: further options of tgrad bench step")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    if args.one:
        print(json.dumps(pytorch(args)))
        return
    shapes = {args.shape: args.shape} if args.shape else \
        {name: text for name, text in SHAPES.items() if re.search(args.only, name)}
    if not shapes:
        sys.exit(f"no shape's name matches '{args.only}'; there are: {', '.join(SHAPES)}")
    rows = []
    for name, text in shapes.items():
        rows.append(row := measure(args, name, text))
        if len(rows) == 1 and not args.json:
            print(f"{args.backend}, {args.threads} threads, PyTorch {row['pytorch']['version']}; ms a step, MB")
            print(f"{'':40} {'PyTorch':>9} {'tgrad':>9} {'ratio':>6} {'tensorgrad':>10} {'over':>6} {'PyTorch':>8} "
                  f"{'tgrad':>8} {'ratio':>6}")
        if not args.json:
            print(f"{name:40} {row['pytorch']['step']:9.2f} {row['adam']['step']:9.2f} {row['speed_ratio']:6.2f} "
                  f"{row['tensorgrad']['step']:10.2f} {row['overhead']:6.1%} {row['pytorch']['peak'] / 1e6:8.0f} "
                  f"{row['adam']['peak'] / 1e6:8.0f} {row['memory_ratio']:6.2f}", flush=True)
    mean = math.exp(statistics.fmean(math.log(row["speed_ratio"]) for row in rows))
    worst = min(rows, key=lambda row: row["speed_ratio"])
    if args.json:
        print(json.dumps({"backend": args.backend, "threads": args.threads, "math": args.math, "rows": rows,
                          "geometric_mean": mean}))
    else:
        print(f"geometric mean {mean:.2f}, worst {worst['speed_ratio']:.2f} ({worst['name']})")


if __name__ == "__main__":
    main()
