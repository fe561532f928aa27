"""Parameter groups of a model: which tensors are worth compressing."""
from typing import Any

import torch

from . import _settings
from ._library import Error
from ._torch import DTYPES

__all__ = ["param_groups"]


def _takes_names():
    """Since version 2.6, torch.optim takes (name, tensor) pairs."""
    major, minor = torch.__version__.split(".")[:2]
    return (int(major), int(minor)) >= (2, 6)


def sort_params(model, group_of, groups):
    """Fills the groups with the trainable parameters of a model; `group_of` returns the index of a
    parameter's group. Empty groups are left out."""
    params = [[] for _ in groups]
    for name, param in model.named_parameters():
        if param.requires_grad:
            params[group_of(param)].append((name, param))
    if not any(params):
        raise Error("param_groups: the model has no trainable parameter")
    if not _takes_names():
        params = [[param for _, param in members] for members in params]
    return [{"params": members, **group} for members, group in zip(params, groups) if members]


def _share(param, keys):
    """State of a tensor with these settings, of that with Adam."""
    plain = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.0}
    sizes = [_settings.planned_state({**plain, **group}, DTYPES[param.dtype], param.shape)
             for group in ({**_settings.preset(method=keys.get("method"), given=keys), **keys,
                            "state_precision": "full"},
                           {"method": "adam"})]
    return sizes[0] / sizes[1]


_MATRIX = {"method": "galore", "galore_2d_proj_type": "std"}


def param_groups(model: torch.nn.Module, min_entries: int | None = None, **keys: Any) -> list[dict]:
    """Groups for TensorGRaD: tensors of two and more dimensions and more than `min_entries` entries
    are compressed, the others are left to Adam. By default these are 1000, or a thousandth of the
    model's: smaller ones would cost time and save nothing. `keys` are settings of the compressed
    ones.

        opt = libtgrad.TensorGRaD(libtgrad.param_groups(model), lr=3e-4)

    Factors of a matrix or of a narrow tensor can be as large as what they save. Where more than 40 %
    of Adam's state would be left, a tensor is taken as a matrix with one factor for its short side
    (galore), if that is less; where more than 60 % would, it is left to Adam, too.
    """
    if not hasattr(model, "named_parameters"):
        raise Error(f"param_groups: a {type(model).__name__} is no model; parameters alone go to TensorGRaD")
    _settings.rename(keys)
    _settings.check_keys(keys)
    min_entries = keys.pop("min_entries", min_entries)
    if min_entries is None:
        entries = sum(param.numel() for param in model.parameters() if param.requires_grad)
        min_entries = max(1000, entries // 1000)
    compressed = {"min_entries": min_entries, **keys}
    matrix = {"min_entries": min_entries, **_MATRIX,
              **{key: value for key, value in keys.items() if key not in _settings.SHAPING}}
    shares = {}

    def group_of(param):
        if param.dim() < 2 or param.numel() <= min_entries or param.dtype not in DTYPES:
            return 0
        kind = param.dtype, tuple(param.shape)
        if kind not in shares:
            share, number = _share(param, compressed), 1
            if share > 0.4 and "method" not in keys:
                share, number = min((share, number), (_share(param, matrix), 2))
            shares[kind] = number if share <= 0.6 else 0
        return shares[kind]

    return sort_params(model, group_of, [{"method": "adam"}, compressed, matrix])
