"""Settings of a parameter group as the library's, by their published names."""
import ctypes
from itertools import count, takewhile

from ._config import in_yaml
from ._library import Context, Error, c, lib, shape_of, text

# Keys of a group besides the library's: those of torch, schedulers and users.
_OTHERS = {"params", "param_names", "lr", "betas", "eps", "weight_decay", "method", "seed",
           "rank_counts_factors", "name", "initial_lr", "max_lr", "min_lr", "base_momentum",
           "max_momentum", "swa_lr"}
_OTHERS |= {"real"}  # overrides for real tensors, by key
_OF_ALL = {"in_backward", "accumulate", "max_grad_norm", "preset"}  # groups have none of their own
# Options of torch's own optimizers, and why they are refused when they are set.
_ONE_CALL = "its step is one call of the library for all parameters"
_REFUSED = {"foreach": _ONE_CALL, "fused": _ONE_CALL, "amsgrad": "no maximum of second moments is kept",
            "capturable": "its step cannot be a part of a CUDA graph", "maximize": "negate the loss",
            "differentiable": "nothing flows back through its step"}

PRESETS = {
    # In AdamW's place, at its learning rate: updates as long as AdamW's, more of the largest entries
    # and fresh projections, which measured best in no more bytes than the paper's. Real tensors
    # (convolutions, linear layers) do better with the paper's shares.
    "adamw": {"method": "tensorgrad", "eps": 1e-8, "sparse_ratio": 0.20, "second_rank": 0.05,
              "update_proj_gap": 100, "moments_on_refresh": "reset", "match_rms": True,
              "real": {"sparse_ratio": 0.05, "second_rank": 0.20}},
    # TensorGRaD as published: the 5 % largest entries, then a Tucker core of 20 % of the rest.
    "paper": {"method": "tensorgrad", "eps": 1e-6, "update_proj_gap": 1000, "n_iter_max_tucker": 1},
    # As in the package neuraloperator: low rank first, then random entries of the residual.
    "neuralop": {"method": "lowrank", "eps": 1e-6, "optimizer_type": "tensorgrad", "proj_type": "low_rank",
                 "rank": 0.20, "second_proj_type": "unstructured_sparse",
                 "second_sparse_ratio": 0.05, "second_sparse_type": "randk",
                 "update_proj_gap": 50, "n_iter_max_tucker": 10, "rank_counts_factors": True},
}

_voice = Context()  # for error messages about settings
KEYS = frozenset(map(text, takewhile(bool, map(lib.tg_optim_config_key, count()))))
_KNOWN = KEYS | {"lambda_sparse"}


# Settings of a projection, which fit its own kind only.
SHAPING = {"optimizer_type", "proj_type", "rank", "sparse_ratio", "sparse_type", "scale",
           "scale_by_mask_ratio", "second_proj_type", "second_rank", "second_sparse_ratio",
           "second_sparse_type", "second_scale", "second_scale_by_mask_ratio", "lambda_sparse",
           "tensorgrad_sum_lambda_sparse", "memory_budget"}


def shares(name):
    """Keys of a preset that are for its own method alone: others have shares of their own."""
    return (SHAPING | {"real"}) & PRESETS[name].keys() if name == "adamw" else frozenset()


def preset(name="adamw", method=None, given=()):
    """Its keys, but for those that are given; a method that is not the preset's has its own shares."""
    if name not in PRESETS:
        raise Error(f"preset: '{name}' is none of {', '.join(PRESETS)}", c.TG_E_CONFIG)
    keys = dict(PRESETS[name])
    if method not in (None, keys["method"]):
        keys = {key: value for key, value in keys.items() if key not in shares(name)}
        keys["method"] = method
    if "real" in keys:
        keys["real"] = without(keys["real"], given)
    return keys


# Keys that the package neuraloperator calls otherwise.
_NAMES = {"min_params": "min_entries", "warm_restart": "tucker_warm_restart"}


def rename(keys):
    """Its names to the library's, in place."""
    for key in _NAMES.keys() & keys.keys():
        keys[_NAMES[key]] = keys.pop(key)
    return keys


def without(keys, given):
    return {key: value for key, value in keys.items() if key not in given}


def check_keys(group):
    """Refuses unknown keys with the library's own message."""
    for key in group:
        if key in _REFUSED:
            if group[key]:
                raise Error(f"{key}: TensorGRaD has no such option; {_REFUSED[key]}", c.TG_E_CONFIG)
        elif key in _OF_ALL:
            raise Error(f"{key}: it is an argument of TensorGRaD for all parameters, not of a group",
                        c.TG_E_CONFIG)
        elif key not in _KNOWN and key not in _OTHERS:
            config = c.tg_optim_config()
            lib.tg_optim_config_init(config, ctypes.sizeof(config))
            _set(config, key, "")


def fingerprint(group):
    """Changes when a setting does; cheap enough for every step."""
    beta1, beta2 = group["betas"]
    return (float(group["lr"]), float(beta1), float(beta2), float(group["eps"]),
            float(group["weight_decay"]),
            *[group[key] for key in group if key in _KNOWN])


def tucker_ranks(shape, share):
    """Ranks in one proportion of every mode, such that core and factors together have that share
    of the entries."""
    entries, squares = 1, sum(size * size for size in shape)
    for size in shape:
        entries *= size
    low, high = 0.0, max(share, 1.0)
    for _ in range(200):
        middle = 0.5 * (low + high)
        if entries * middle ** len(shape) + squares * middle < share * entries:
            low = middle
        else:
            high = middle
    return [max(1, round(size * high)) for size in shape]


def config_of(group, shape=None, is_real=False):
    """The tg_optim_config of a group; for tensors of `shape` where ranks depend on it."""
    if is_real:
        group = {**group, **(group.get("real") or {})}
    config = c.tg_optim_config()
    lib.tg_optim_config_init(config, ctypes.sizeof(config))
    _set(config, "name", group["method"])
    beta1, beta2 = group["betas"]
    numbers = {"learning_rate": float(group["lr"]), "beta1": float(beta1), "beta2": float(beta2),
               "eps": float(group["eps"]), "weight_decay": float(group["weight_decay"])}
    for key, value in {**numbers, **{k: v for k, v in group.items() if k in _KNOWN}}.items():
        if key == "rank" and counts_factors(group):
            value = tucker_ranks(shape, value) if shape else 1
        if value is not None:
            _set(config, key, in_yaml(value, f"opt.{key}"))
    return config


def counts_factors(group):
    """Whether ranks are counted with factors, and so for every shape anew."""
    return bool(group.get("rank_counts_factors")) and isinstance(group.get("rank"), float)


def planned_state(group, dtype, shape):
    """Bytes of moments, factors and index sets that a tensor of this TG_ dtype would have."""
    context = Context("cpu")
    config = config_of(group, tuple(shape), not lib.tg_dtype_is_complex(dtype))
    param = c.tg_optim_param(b"it", dtype, shape_of(shape), 0)
    number = ctypes.c_int(0)  # of a longer list, in which others may be large enough for 8 bits
    setup = c.tg_optim_setup(size=ctypes.sizeof(c.tg_optim_setup), groups=ctypes.pointer(config),
                             group_count=1, params=ctypes.pointer(param), param_count=1,
                             numbers=ctypes.pointer(number))
    sizes = (ctypes.c_size_t * c.TG_MEM_CATEGORIES)()
    context.check(lib.tg_optim_plan(context, setup, sizes))
    return sizes[c.TG_MEM_OPTIMIZER] + sizes[c.TG_MEM_FACTORS] + sizes[c.TG_MEM_INDICES]


def _set(config, key, value):
    _voice.check(lib.tg_optim_config_set(_voice, config, key.encode(), value.encode()))
