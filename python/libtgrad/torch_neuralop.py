"""The optimizers of the package neuraloperator: their arguments, parameter groups and states."""
from typing import Any

import torch

from . import _settings
from ._library import Error, c
from .torch_groups import sort_params

__all__ = ["fno_tensorgrad_param_groups", "from_neuralop_state"]

# Updates have that package's length, not AdamW's.
_PLAIN = {"match_rms": False, "moments_on_refresh": "keep"}
_LOW_RANK = {**_PLAIN, "method": "lowrank", "n_iter_max_tucker": 10, "rank_counts_factors": True}

# Arguments of its AdamW (Tensor-GaLore) that torch's does not have.
_OF_GALORE = {"galore_rank": ("rank", 1.0), "galore_update_proj_gap": ("update_proj_gap", 50),
              "galore_scale": ("scale", 1.0), "warm_restart": ("tucker_warm_restart", True)}
_WITHOUT_EFFECT = {"activation_checkpoint", "no_deprecation_warning"}

# Keys of a group of its TensorGRaD, which later versions have, and their defaults there.
_OF_TENSORGRAD = {"rank": 0.25, "sparse_ratio": None, "update_proj_gap": 50, "scale": 1.0, "sparse_scale": 1.0,
                  "sparse_type": "randk", "lambda_sparse": 1.0, "warm_restart": True, "tucker_n_iter_max": 10,
                  "scale_by_mask_ratio": False}


def _keys_of(given):
    """The library's keys for those of such a group."""
    given = {**_OF_TENSORGRAD, **given}
    keys = {**_LOW_RANK, "rank": given["rank"], "update_proj_gap": given["update_proj_gap"],
            "scale": given["scale"], "tucker_warm_restart": given["warm_restart"],
            "n_iter_max_tucker": given["tucker_n_iter_max"]}
    if given["sparse_ratio"] is not None:
        kind = {"randomk": "randk"}.get(given["sparse_type"], given["sparse_type"])
        keys.update(optimizer_type="tensorgrad", second_proj_type="unstructured_sparse",
                    second_sparse_ratio=given["sparse_ratio"], second_sparse_type=kind,
                    second_scale=given["sparse_scale"], lambda_sparse=given["lambda_sparse"],
                    second_scale_by_mask_ratio=given["scale_by_mask_ratio"])
    return keys


def _of_its_group(group):
    """A group of its TensorGRaD as one of ours."""
    dropped = {"tensorgrad", "correct_bias", *_OF_TENSORGRAD, *_WITHOUT_EFFECT}
    rest = {key: value for key, value in group.items() if key not in dropped}
    if group.get("tensorgrad"):
        return {**rest, "min_entries": 0, **_keys_of({key: group[key] for key in _OF_TENSORGRAD if key in group})}
    return {"method": "adam", **_PLAIN, **rest}


def with_its_arguments(params, keys):
    """(params, keys) of TensorGRaD, of those that may be named as in neuraloperator's AdamW or TensorGRaD."""
    keys = {key: value for key, value in keys.items() if key not in _WITHOUT_EFFECT}
    if not keys.pop("correct_bias", True):
        raise Error("correct_bias: False; moments are always corrected for their beginning", c.TG_E_CONFIG)
    params = list(params)
    if any(isinstance(group, dict) and "tensorgrad" in group for group in params):
        return [_of_its_group(group) for group in params], {"eps": 1e-6, **_settings.rename(keys)}
    galore = keys.pop("galore_params", None)
    found = [name for name in _OF_GALORE if name in keys]
    if galore is None:
        if found and found != ["warm_restart"]:
            raise Error(f"{found[0]}: it is for galore_params, and there are none; 'rank', 'scale' and "
                        "'update_proj_gap' are for all compressed parameters", c.TG_E_CONFIG)
        return params, _settings.rename(keys)
    low_rank = {key: keys.pop(name, default) for name, (key, default) in _OF_GALORE.items()}
    rest = params if params and isinstance(params[0], dict) else [{"params": params}]
    groups = [{"method": "adam", **group} for group in rest if group["params"]]
    return ([*groups, {"params": galore}],
            {"eps": 1e-6, "min_entries": 0, **_LOW_RANK, **low_rank, **keys})


def fno_tensorgrad_param_groups(model: torch.nn.Module, rank: float | list[int] = 0.25,
                                sparse_ratio: float | None = None, min_params: int = 1000,
                                update_proj_gap: int = 50, scale: float = 1.0,
                                sparse_scale: float = 1.0, sparse_type: str = "randk",
                                lambda_sparse: float = 1.0, warm_restart: bool = True) -> list[dict]:
    """The groups of the package neuraloperator, with its arguments: spectral weights of an FNO
    (`model.fno_blocks.convs`) of at least `min_params` entries by low rank and, if `sparse_ratio` is
    given, by entries of what that leaves; everything else by Adam. Ranks are counted with their
    factors."""
    if not hasattr(getattr(model, "fno_blocks", None), "convs"):
        raise Error("fno_tensorgrad_param_groups: the model has no fno_blocks.convs; param_groups "
                    "takes any model")
    spectral = {id(param) for param in model.fno_blocks.convs.parameters()}
    keys = _keys_of({"rank": rank, "sparse_ratio": sparse_ratio, "update_proj_gap": update_proj_gap, "scale": scale,
                     "sparse_scale": sparse_scale, "sparse_type": sparse_type, "lambda_sparse": lambda_sparse,
                     "warm_restart": warm_restart})
    return sort_params(model, lambda p: id(p) in spectral and p.numel() >= min_params,
                       [{**_PLAIN, "method": "adam"}, keys])


# ---- states ----

_METHODS = (b"adam modulus", b"single low_rank modulus", b"composite low_rank+unstructured_sparse modulus")


def from_neuralop_state(state_dict: dict[str, Any], **arguments: Any) -> dict[str, Any]:
    """A state_dict of neuraloperator's AdamW, with or without galore_params, or of its TensorGRaD, as one
    of the class here.

        opt = libtgrad.TensorGRaD(rest, galore_params=spectral, galore_rank=0.25)   # as it was made
        opt.load_state_dict(libtgrad.from_neuralop_state(torch.load("opt.pt", weights_only=False)))

    Steps, moments, factors, and the settings of its groups are kept. `arguments` are those that it
    does not save: galore_update_proj_gap, galore_scale and warm_restart. Version 2.0 keeps the factors
    of the first step for ever; here they are refreshed every galore_update_proj_gap (50) steps.
    """
    from .torch_optim import TensorGRaD
    groups = state_dict["param_groups"]
    for group in groups:
        if "correct_bias" not in group:
            raise Error("from_neuralop_state: a parameter group has no 'correct_bias'; this is no state of "
                        "neuraloperator's AdamW", c.TG_E_FORMAT)
    if any(group.get("galore") for group in groups[:-1]):
        raise Error("from_neuralop_state: its last group alone can have galore_params", c.TG_E_FORMAT)
    listed = [[torch.nn.Parameter(torch.zeros(1)) for _ in group["params"]] for group in groups]
    if any("tensorgrad" in group for group in groups):
        opt = TensorGRaD([{**_settings.without(group, ["param_names"]), "params": params}
                          for group, params in zip(groups, listed)], **arguments)
    elif groups[-1].get("galore"):
        rest = [{"params": params} for params in listed[:-1]]
        opt = TensorGRaD(rest, galore_params=listed[-1], galore_rank=groups[-1]["rank"], **arguments)
    else:
        opt = TensorGRaD([{"params": params} for params in listed], method="adam", **_PLAIN, **arguments)
    found = opt.state_dict()
    found["state"] = {}
    for group, before in zip(found["param_groups"], groups):
        if not before["correct_bias"]:
            raise Error("from_neuralop_state: correct_bias is False; moments are always corrected for their "
                        "beginning", c.TG_E_CONFIG)
        group.update({key: before[key] for key in ("lr", "betas", "eps", "weight_decay", "initial_lr")
                      if key in before}, params=before["params"])
        for number in before["params"]:
            parts = state_dict["state"].get(number)
            if parts:
                found["state"][number] = _state(number, parts, group)
    return found


def _state(number, parts, group):
    """The state of one parameter."""
    branches = [name for name in ("low_rank_", "sparse_") if f"{name}projector" in parts] or [""]
    for name in ("step", *(f"{branch}{moment}" for branch in branches for moment in ("exp_avg", "exp_avg_sq"))):
        if name not in parts:
            raise Error(f"from_neuralop_state: parameter {number} has no '{name}'; this is no state of "
                        "neuraloperator's AdamW or TensorGRaD", c.TG_E_FORMAT)
    projector = parts.get("low_rank_projector") or parts.get("projector")
    factors = getattr(projector, "proj_tensor", None) or []
    count = len(branches) if factors else 0
    step, gap = int(parts["step"]), int(group.get("update_proj_gap", 1))
    refreshed = max(step - 1, 0) // gap * gap if factors else -1  # as if each had been made
    moments, squares = (torch.cat([_wide(parts[f"{branch}{name}"]).flatten().cpu() for branch in branches])
                        for name in ("exp_avg", "exp_avg_sq"))
    counters = [step, step, refreshed, int(bool(factors)), 0, int(count > 0), int(count > 1)]
    found = {"method": torch.tensor(list(_METHODS[count]), dtype=torch.uint8), "counters": torch.tensor(counters),
             "m": moments.clone(), "v": squares.real.clone(),
             **{f"0.factor{mode}": _wide(factor).detach().cpu().clone() for mode, factor in enumerate(factors)}}
    if count > 1:
        projector = parts["sparse_projector"]
        found["1.bitmap"] = _bitmap(projector.indices.cpu(), torch.Size(projector.orig_shape).numel())
    return found


def _bitmap(indices, entries):
    """Words of 64 bits with a 1 for each index."""
    words = torch.zeros(-(-entries // 64), dtype=torch.int64)
    return words.scatter_add_(0, indices // 64, torch.ones_like(indices) << (indices % 64))


def _wide(tensor):
    """In the format of the arithmetic."""
    narrow = {torch.bfloat16: torch.float32, torch.float16: torch.float32, torch.complex32: torch.complex64}
    return tensor.to(narrow.get(tensor.dtype, tensor.dtype))
