"""Golden trajectories of optimizers through the class of torch: as `tgrad verify optim` does it."""
import ctypes
import json
import pathlib

import pytest

torch = pytest.importorskip("torch")

import libtgrad
from libtgrad._engine import _copy
from libtgrad._library import Context, lib, text

FILES = sorted((pathlib.Path(__file__).resolve().parent.parent.parent / "tests/fixtures").glob("optim_*"))


def read(path):
    """(tensors, metadata) of a safetensors file."""
    context, archive = Context(), ctypes.c_void_p()
    context.check(lib.tg_safetensors_read(context, str(path).encode(), archive))
    tensors = {text(lib.tg_archive_name(archive, i)): _copy(lib.tg_archive_tensor(archive, i).contents)
               for i in range(lib.tg_archive_count(archive))}
    meta = {text(lib.tg_archive_meta_key(archive, i)): json.loads(text(lib.tg_archive_meta_value(archive, i)))
            for i in range(lib.tg_archive_meta_count(archive))
            if text(lib.tg_archive_meta_key(archive, i)) in
            ("lr", "eps", "weight_decay", "betas", "kind", "options", "first_dim_rollup")}
    lib.tg_archive_destroy(archive)
    return tensors, meta


def settings(meta):
    kind = meta["kind"]
    keys = {**meta["options"], "tensorgrad": kind != "adamw", "min_entries": 0}
    if kind in ("composite", "sum"):
        keys["optimizer_type"] = "tensorgrad" if kind == "composite" else "tensorgrad_sum"
    if kind == "galore":
        keys.update(proj_type="matrix", first_dim_rollup=meta["first_dim_rollup"])
    return {"lr": meta["lr"], "betas": meta["betas"], "eps": meta["eps"],
            "weight_decay": meta["weight_decay"], "method": "adam", "preset": "paper",
            "match_rms": False, **keys}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_trajectory(path):
    tensors, meta = read(path)
    weight = torch.nn.Parameter(tensors["w0"].clone())
    opt = libtgrad.TensorGRaD([weight], **settings(meta))
    for gradient, expected in zip(tensors["grads"], tensors["weights"]):
        weight.grad = gradient.clone()
        opt.step()
        change = (expected - tensors["w0"]).norm()
        assert (weight.detach() - expected).norm() <= 1e-4 * change


def test_there_are_files():
    assert len(FILES) >= 15
