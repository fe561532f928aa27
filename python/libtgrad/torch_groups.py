"""Parameter groups of a model: which tensors are worth compressing."""
import torch

from ._library import Error

__all__ = ["fno_tensorgrad_param_groups", "param_groups"]


def _takes_names():
    """Since version 2.6, torch.optim takes (name, tensor) pairs."""
    major, minor = torch.__version__.split(".")[:2]
    return (int(major), int(minor)) >= (2, 6)


def _split(model, wanted, compressed, dense):
    """Two groups of the trainable parameters of a model; one that would be empty is left out."""
    big, rest = [], []
    for name, param in model.named_parameters():
        if param.requires_grad:
            (big if wanted(name, param) else rest).append((name, param))
    if not big and not rest:
        raise Error("param_groups: the model has no trainable parameter")
    groups = [{"params": rest, **dense}, {"params": big, **compressed}]
    for group in groups:
        if not _takes_names():
            group["params"] = [param for _, param in group["params"]]
    return [group for group in groups if group["params"]]


def param_groups(model, min_entries=1000, **keys):
    """Groups for TensorGRaD: tensors of more than `min_entries` entries are compressed, those of
    fewer, vectors and scalars are left to Adam. `keys` are settings of the compressed ones.

        opt = libtgrad.TensorGRaD(libtgrad.param_groups(model), lr=3e-4)
    """
    def wanted(name, param):
        return param.dim() >= 2 and param.numel() > min_entries

    return _split(model, wanted, {"min_entries": min_entries, **keys}, {"method": "adam"})


def fno_tensorgrad_param_groups(model, rank=0.25, sparse_ratio=None, min_params=1000,
                                update_proj_gap=50, scale=1.0, sparse_scale=1.0,
                                sparse_type="randk", lambda_sparse=1.0, warm_restart=True):
    """The groups of the package neuraloperator, with its arguments: spectral weights of an FNO
    (`model.fno_blocks.convs`) of at least `min_params` entries by low rank and, if `sparse_ratio` is
    given, by entries of what that leaves; everything else by Adam. Ranks are counted with their
    factors."""
    if not hasattr(getattr(model, "fno_blocks", None), "convs"):
        raise Error("fno_tensorgrad_param_groups: the model has no fno_blocks.convs; param_groups "
                    "takes any model")
    spectral = {id(param) for param in model.fno_blocks.convs.parameters()}
    keys = {"method": "lowrank", "rank": rank, "update_proj_gap": update_proj_gap, "scale": scale,
            "tucker_warm_restart": warm_restart, "n_iter_max_tucker": 10,
            "rank_counts_factors": True}
    if sparse_ratio is not None:
        keys.update(optimizer_type="tensorgrad", second_proj_type="unstructured_sparse",
                    second_sparse_ratio=sparse_ratio, second_sparse_type=sparse_type,
                    second_scale=sparse_scale, lambda_sparse=lambda_sparse)
    return _split(model, lambda _, p: id(p) in spectral and p.numel() >= min_params, keys,
                  {"method": "adam"})
