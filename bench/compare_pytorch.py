#!/usr/bin/env python3
"""Step time and memory of PyTorch's FNO (package neuraloperator) beside ours, same shapes, same run.

    pip install torch neuraloperator
    bench/compare_pytorch.py [--tgrad build/bin/tgrad] [--preset ns128] [--threads 2] [--json]
    bench/compare_pytorch.py --tgrad build-cuda/bin/tgrad --backend cuda [--tucker 0.1 | --low-rank 0.25]

Both train one batch of random data with dense Adam, or with --low-rank with Adam on Tucker cores of the
gradients (neuraloperator's own optimizer, `--opt lowrank` here): forward, loss, backward, update. Ours is `tgrad
bench step`; theirs is timed here, the median of several steps after a warm-up, and its memory is the
growth of the process's peak from before the model is made, or of what PyTorch allocates on the GPU.
On a GPU both multiply in TF32. With --tucker both have Tucker weights of that share of the parameters.
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import time

PRESETS = {  # the networks of `tgrad bench step`
    "ns128": dict(modes=(64, 64), hidden=64, layers=4, lifting=2, projection=4, grid=(128, 128), batch=8, loss="h1"),
    "ns1024": dict(modes=(128, 128), hidden=128, layers=4, lifting=2, projection=4, grid=(1024, 1024), batch=2, loss="l2"),
    "darcy421": dict(modes=(64, 64), hidden=128, layers=4, lifting=2, projection=1, grid=(421, 421), batch=2, loss="l2"),
    "burgers": dict(modes=(90,), hidden=256, layers=4, lifting=2, projection=1, grid=(128,), batch=16, loss="h1"),
}


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def optimizer_of(model, low_rank):
    import torch
    if low_rank is None:
        return torch.optim.Adam(model.parameters(), lr=1e-3)
    from neuralop.training import AdamW
    rest = [p for p in model.parameters() if not p.is_complex()]
    large = [p for p in model.parameters() if p.is_complex()]
    return AdamW(rest, lr=1e-3, galore_params=large, galore_rank=low_rank, galore_update_proj_gap=1000)


def theirs(args):
    import torch
    from neuralop.losses import H1Loss, LpLoss
    from neuralop.models import FNO

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    on_gpu = args.backend == "cuda"
    peak = torch.cuda.max_memory_allocated if on_gpu else peak_bytes

    def now():
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    p = PRESETS[args.preset]
    dims = len(p["grid"])
    device = "cuda" if on_gpu else "cpu"
    x = torch.randn(p["batch"], 1, *p["grid"], device=device)
    y = torch.randn(p["batch"], 1, *p["grid"], device=device)
    before = peak()
    weights = dict(factorization="tucker", rank=args.tucker, implementation="factorized") if args.tucker else {}
    model = FNO(n_modes=p["modes"], in_channels=1, out_channels=1, hidden_channels=p["hidden"],
                n_layers=p["layers"], lifting_channel_ratio=p["lifting"],
                projection_channel_ratio=p["projection"], **weights).to(device)
    loss = (H1Loss if p["loss"] == "h1" else LpLoss)(d=dims)
    adam = optimizer_of(model, args.low_rank)
    passes, updates = [], []
    for step in range(args.steps + 2):
        start = now()
        adam.zero_grad(set_to_none=True)
        loss(model(x), y).backward()
        middle = now()
        adam.step()
        if step >= 2:
            passes.append(middle - start)
            updates.append(now() - middle)
    return {"torch": torch.__version__, "forward_backward_ms": 1e3 * statistics.median(passes),
            "optimizer_ms": 1e3 * statistics.median(updates), "peak_bytes": peak() - before,
            "parameters": sum(q.numel() * (2 if q.is_complex() else 1) for q in model.parameters())}


def find(tree, *names):
    """The first number under any of the names, anywhere in a JSON tree."""
    if isinstance(tree, dict):
        for name in names:
            if isinstance(tree.get(name), (int, float)):
                return tree[name]
        tree = list(tree.values())
    if isinstance(tree, list):
        for item in tree:
            found = find(item, *names)
            if found is not None:
                return found
    return None


def ours(args):
    command = [args.tgrad, "bench", "step", "--preset", args.preset, "--opt",
               "adam" if args.low_rank is None else "lowrank", "--threads",
               str(args.threads), "--steps", str(args.steps), "--backend", args.backend, "--json"]
    if args.tucker:
        command += ["--fno.factorization", "Tucker", "--fno.rank", str(args.tucker)]
    if args.low_rank is not None:
        command += ["--opt.rank", str(args.low_rank)]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {"forward_backward_ms": find(report, "forward_backward"), "optimizer_ms": find(report, "optimizer"),
            "peak_bytes": find(report, "peak"), "parameters": find(report, "parameters"), "report": report}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tgrad", default="build/bin/tgrad")
    parser.add_argument("--preset", default="ns128", choices=PRESETS)
    parser.add_argument("--backend", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--tucker", type=float, metavar="RANK", help="Tucker weights of this share of the parameters")
    parser.add_argument("--low-rank", type=float, metavar="SHARE", help="Adam on Tucker cores of this share")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    result = {"preset": args.preset, "backend": args.backend, "tucker": args.tucker, "low_rank": args.low_rank,
              "threads": args.threads, "ours": ours(args), "pytorch": theirs(args)}
    a, b = result["ours"], result["pytorch"]
    step = [r["forward_backward_ms"] + r["optimizer_ms"] for r in (a, b)]
    result["speed_ratio"] = step[1] / step[0]
    result["memory_ratio"] = b["peak_bytes"] / a["peak_bytes"]
    if args.json:
        print(json.dumps(result))
        return
    weights = f", Tucker weights {args.tucker}" if args.tucker else ""
    method = "dense Adam" if args.low_rank is None else f"Adam on Tucker cores of {args.low_rank}"
    print(f"{args.preset}{weights}, {method}, {args.backend}, {args.threads} threads, PyTorch {b['torch']}")
    print(f"{'':10} {'fwd+bwd ms':>12} {'Adam ms':>9} {'step ms':>9} {'peak GB':>9} {'parameters':>12}")
    for name, r, total in (("ours", a, step[0]), ("PyTorch", b, step[1])):
        print(f"{name:10} {r['forward_backward_ms']:12.2f} {r['optimizer_ms']:9.2f} {total:9.2f} "
              f"{r['peak_bytes'] / 1e9:9.2f} {r['parameters']:12d}")
    print(f"{step[1] / step[0]:.2f} times as fast, {b['peak_bytes'] / a['peak_bytes']:.2f} times less memory")


if __name__ == "__main__":
    main()
