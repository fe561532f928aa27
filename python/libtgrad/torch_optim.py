"""TensorGRaD as an optimizer of PyTorch."""
import copy
import functools
import gc
import itertools
import math
import warnings
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.optim import optimizer

from . import _settings
from ._engine import FORMAT, Engine, Moved, Row, check_param
from ._library import Error, c, lib, text
from ._shards import Shards, is_sharded, mesh_of
from ._torch import real_view
from .torch_neuralop import with_its_arguments

__all__ = ["TensorGRaD"]


def _is_trained(param):
    """Whether it gets a state; parameters of lazy modules have no shape before their first use."""
    return param.requires_grad and not is_lazy(param) and param.numel() > 0


def _with_hooks(step):
    """Wraps a step in hooks and a profiler record, as torch does, but only if a hook or profiler is active:
    the record alone takes 20 us on some hosts, during which a GPU would be idle."""
    whole = torch.optim.Optimizer.profile_hook_step(step)
    of_all = (optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks)

    @functools.wraps(step)
    def choose(self, *args, **keys):
        is_watched = (self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks or any(of_all)
                      or torch.autograd._profiler_enabled())
        # torch puts hooks around the step of a subclass, by functions of one code
        is_outer = getattr(type(self).step, "__code__", None) is not whole.__code__
        return (whole if is_watched and is_outer else step)(self, *args, **keys)

    choose.hooked = True  # torch does not do it again
    return choose


class UpdateHook:
    """Updates parameters as soon as their gradients are complete."""

    def __init__(self, optimizer):
        self._optimizer = weakref.ref(optimizer)

    def __call__(self, param):
        optimizer = self._optimizer()
        if optimizer is not None:
            optimizer._receive(param)

    def engine_of(self, param):
        """The engine that will update it, or None."""
        optimizer = self._optimizer()
        return None if optimizer is None else optimizer._engine_of(param)


class _Parts(dict):
    """Stands in Optimizer.state for what the library keeps of a parameter. Iterating it gives the names of
    the parts, which torch.distributed.checkpoint asks for when it takes flat states apart."""

    def __init__(self, optimizer, param):
        super().__init__()
        self._optimizer, self._param = weakref.ref(optimizer), id(param)

    def __iter__(self):
        return iter(self._optimizer()._names_of_parts()[self._param])


class TensorGRaD(torch.optim.Optimizer):
    """Adam on compressed gradients: a quarter of AdamW's state, or less.

        opt = libtgrad.TensorGRaD(libtgrad.param_groups(model), lr=3e-4)

    Settings are those that do best at AdamW's learning rate (`preset="adamw"`); "paper" is TensorGRaD
    as published, "neuralop" that of the package neuraloperator: both want a larger rate than AdamW.
    `method` is one of adam, lowrank, galore, structured, unstructured and tensorgrad (default); every other
    key of docs/optimizers.md (rank, sparse_ratio, update_proj_gap, state_precision, rule, ..) can be
    given here or in a parameter group, also by the names of neuraloperator's optimizers
    (galore_params, galore_rank, ..). Parameters of up to `min_entries` (1000) entries stay dense.

    With `in_backward=True` parameters are updated during the backward pass, and one gradient is
    alive at a time. With `accumulate=True` the backward passes between two calls of step() are added
    up in compressed form instead, and step() applies them; `max_grad_norm`, distributed() and a
    GradScaler need that, the first two choose it by themselves. zero_grad() drops such sums.
    """

    grad_norm: torch.Tensor | None = None  # of the last step's sums, before clipping

    def __init__(self, params: Iterable, lr: float | torch.Tensor = 1e-3,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float | None = None,
                 weight_decay: float = 0.0, *, method: str | None = None,
                 preset: str = "adamw", seed: int = 0, in_backward: bool = False,
                 accumulate: bool = False, max_grad_norm: float | None = None, **keys: Any):
        if eps is not None:
            keys["eps"] = eps
        params, keys = with_its_arguments(params, keys)
        method = keys.pop("method", method)
        chosen = {**_settings.preset(preset, method, keys), **keys}
        defaults = {"lr": lr, "betas": tuple(betas), "weight_decay": weight_decay, "seed": int(seed),
                    **chosen}
        _settings.check_keys(defaults)
        if not 0 <= defaults["seed"] < 1 << 64:
            raise Error(f"seed: {seed}; a whole number from 0 to 2^64 - 1 is needed", c.TG_E_CONFIG)
        if max_grad_norm is not None and not max_grad_norm > 0:
            raise Error(f"max_grad_norm: {max_grad_norm}; a number > 0 is needed", c.TG_E_CONFIG)
        if (accumulate or max_grad_norm is not None) and not in_backward:
            raise Error("accumulate and max_grad_norm are for in_backward=True; otherwise gradients "
                        "add up in .grad, and torch.nn.utils.clip_grad_norm_ clips them",
                        c.TG_E_CONFIG)
        if chosen["method"] != "adam" and "match_rms" not in chosen:
            warnings.warn(f"TensorGRaD: with preset '{preset}' updates are 0.35 to 0.5 times as long as "
                          "AdamW's at the same lr: take 2 to 3 times AdamW's lr, or match_rms=True; "
                          "match_rms=False leaves it so", stacklevel=2)
        self._options = {"in_backward": bool(in_backward), "max_grad_norm": max_grad_norm,
                         "accumulate": bool(accumulate) or max_grad_norm is not None,
                         "distributed": False,
                         # keys of the preset that groups of another method omit
                         "shares": _settings.shares(preset) - keys.keys()}
        self._begin()
        super().__init__(params, defaults)

    def _begin(self):
        self._pending = {}  # id of a parameter: it, and its state until its engine is made
        self._process_group = None
        self._forget_engines()
        self._hooks = {}  # id of a parameter: it, and its hook
        self._loading = None
        self._has_received = False  # a gradient, in a backward pass
        self._is_following = False  # a gradient since the last step

    def _forget_engines(self):
        self._engines = []
        self._where = {}  # id of a parameter: its engine, its place there, and its group
        self._listed, self._idle = None, []  # ids of groups and parameters, those without an engine
        self._part_names = None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self.param_groups and not isinstance(param_group["params"], set):
            param_group["params"] = self._named_alike(param_group["params"])
        _settings.rename(param_group)
        if param_group.get("method", self.defaults["method"]) != self.defaults["method"]:
            for key in self._options["shares"]:
                param_group.setdefault(key, None)  # its method's own
        if "real" in self.defaults:
            param_group.setdefault("real", _settings.without(self.defaults["real"], param_group))
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            _settings.check_keys(group)
            _settings.config_of(group)
            self._check_sharded(group, self._options)
        except Error:
            self.param_groups.pop()
            raise
        self._hook(group["params"])
        if self._process_group is not None:
            self._broadcast(group["params"])

    @staticmethod
    def _check_sharded(group, options):
        """Refuses settings that DTensors do not support."""
        if not any(map(is_sharded, group["params"])):
            return
        if options["distributed"]:
            raise Error("distributed: not with DTensors (FSDP2); fully_shard averages their gradients: call step() "
                        "alone", c.TG_E_CONFIG)
        if group.get("memory_budget"):
            raise Error("memory_budget: not with DTensors (FSDP2); it is divided over all parameters, and no "
                        "process holds them all: set rank and sparse_ratio", c.TG_E_CONFIG)

    def _named_alike(self, params):
        """Parameters of a further group: torch wants names of all groups or of none. Where the first
        one has them, numbers stand in for those that are missing."""
        params = [params] if isinstance(params, torch.Tensor) else list(params)
        if "param_names" not in self.param_groups[0]:
            return [param[1] if isinstance(param, tuple) else param for param in params]
        first = sum(len(group["params"]) for group in self.param_groups)
        return [param if isinstance(param, tuple) else (f"parameter {first + i}", param)
                for i, param in enumerate(params)]

    # ---- engines ----

    def _named(self):
        """(number, name, parameter, group) of all parameters. Of two with one name, as the parameters
        of two models may have, the second one has its number in it."""
        number, used = 0, set()
        for g, group in enumerate(self.param_groups):
            names = group.get("param_names")
            for i, param in enumerate(group["params"]):
                name = names[i] if names else f"parameter {number}"
                name = f"{name} (parameter {number})" if name in used else name
                used.add(name)
                yield number, name, param, g
                number += 1

    def _prepare(self):
        """Makes the state of every trainable parameter that has none yet."""
        by_place = {}
        for number, name, param, group in self._named():
            if id(param) in self._where or not param.requires_grad or is_lazy(param):
                continue
            check_param(param, name)
            if param.numel():
                place = mesh_of(param, name) if is_sharded(param) else param.device
                by_place.setdefault(place, []).append(Row(param, number, name, group))
        for place, rows in by_place.items():
            seed = self.param_groups[0]["seed"]
            arguments = rows, self.param_groups, seed, self._options["accumulate"]
            engine = (Engine(*arguments, self._options["in_backward"]) if isinstance(place, torch.device)
                      else Shards(*arguments, place))
            states = {row.number: self._pending[id(row.param)][1] for row in rows
                      if id(row.param) in self._pending}
            if states or (self._loading and isinstance(engine, Shards)):  # a rank may lack them
                engine.load(states)
            self._engines.append(engine)
            for i, row in enumerate(engine.rows):
                self._where[id(row.param)] = engine, i, self.param_groups[row.group]
                self._pending.pop(id(row.param), None)
                self.state[row.param] = _Parts(self, row.param)

    def _follow_groups(self):
        """Engines for parameters that are new or thawed, and without those that left their group."""
        listed = [(id(group), *map(id, group["params"])) for group in self.param_groups]
        if listed == self._listed and not any(map(_is_trained, self._idle)):
            return
        found, is_stale, is_new = 0, False, False
        for number, _, param, group in self._named():
            known = self._where.get(id(param))
            if known:
                engine, i, was = known
                found += 1
                is_stale = (is_stale or was is not self.param_groups[group]
                            or engine.rows[i].number != number)
            else:
                is_new = is_new or _is_trained(param)
        is_stale = is_stale or found < len(self._where) or (is_new and self._engines and self._joins())
        is_late = any(engine.has_sums() for engine in self._engines)  # sums are applied first
        if is_stale and not is_late:
            self._rebuild()
        self._prepare()
        self._listed = None if is_stale and is_late else listed
        self._idle = [param for _, _, param, _ in self._named() if id(param) not in self._where]

    def _joins(self):
        """Whether parameters added later join the existing engine: not if a memory budget has set its
        ranks."""
        return not any(group.get("memory_budget") for group in self.param_groups)

    def _export(self):
        """{parameter: state} of all engines."""
        states = {id(row.param): parts for engine in self._engines
                  for row, parts in zip(engine.rows, engine.save().values())}
        states.update({key: parts for key, (_, parts) in self._pending.items()})
        return {param: states[id(param)] for _, _, param, _ in self._named() if id(param) in states}

    def _names_of_parts(self):
        """{id of a parameter: names of the parts of its state}; all ranks of a mesh ask at once."""
        if self._part_names is None:
            self._part_names = {id(param): list(parts) for param, parts in self._export().items()}
        return self._part_names

    def _rebuild(self):
        """Makes engines anew with the states there are: parameters went to another device or left their
        group, or sums are needed."""
        self._pending = {id(param): (param, parts) for param, parts in self._export().items()}
        self._forget_engines()
        present = {id(param) for _, _, param, _ in self._named()}
        for gone in self._hooks.keys() - present:
            self._hooks.pop(gone)[1].remove()
        for param in [param for param in self.state if id(param) not in present]:
            del self.state[param]
        if self._pending:
            self._prepare()

    # ---- steps ----

    @_with_hooks
    @torch._disable_dynamo
    def step(self, closure: Callable | None = None, *, grad_scaler=None):
        """One update of every parameter that has a gradient.

        With in_backward the updates were made during the backward pass already, unless gradients
        are accumulated, which are applied here.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._part_names = None  # a first step makes more
        is_after_backward = not (self._options["in_backward"] or self._options["accumulate"])
        if is_after_backward:
            for engine in self._engines:
                engine.project_ahead()
        self._follow_groups()
        for engine in self._engines:
            engine.follow_settings()
        if is_after_backward:
            self._step_all()
        else:
            self._end_backward(grad_scaler)
            self._is_following = False
        return loss

    @torch.no_grad()
    def _end_backward(self, grad_scaler):
        if self._options["in_backward"]:
            self._receive_rest()
        if self._options["accumulate"]:
            if self._options["distributed"] and self._process_group is None:
                raise Error("distributed: the optimizer was pickled, and processes cannot be; call "
                            "opt.distributed() again")
            if not self._options["in_backward"]:
                self._accumulate_all()
            self._apply(grad_scaler)
        else:
            if grad_scaler is not None:
                raise Error("in_backward with a GradScaler: an overflow is known when the backward "
                            "pass has ended; accumulate=True makes updates wait for it")
            for engine in self._engines:
                engine.end_step()

    def _step_all(self):
        try:
            work = [(engine, engine.collect()) for engine in self._engines]
        except Moved:
            self._rebuild()
            work = [(engine, engine.collect()) for engine in self._engines]
        for engine, gradients in work:
            engine.step(gradients)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops all gradients, including those accumulated in the backward pass but not applied."""
        super().zero_grad(set_to_none)
        if self._options["accumulate"]:
            for engine in self._engines:
                engine.discard()
        self._is_following = False

    # ---- updates during the backward pass ----

    def _hook(self, params):
        if not self._options["in_backward"]:
            return
        hook = UpdateHook(self)
        self._hooks.update({id(param): (param, param.register_post_accumulate_grad_hook(hook))
                            for param in params if param.requires_grad and not is_lazy(param)})

    def _receive_rest(self):
        """Gradients that no hook has seen: of parameters that were frozen until now and could have none, and
        those set by hand, as torch.distributed.checkpoint does."""
        params = [param for group in self.param_groups for param in group["params"]
                  if param.requires_grad and not is_lazy(param)]
        self._hook([param for param in params if id(param) not in self._hooks])
        for param in params:
            if param.grad is not None:
                self._receive(param)

    def _refuse_ddp(self):
        """DistributedDataParallel averages gradients after the hooks of parameters have run, which
        here have used them: processes would drift apart."""
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return
        mine = {id(param) for _, _, param, _ in self._named()}
        for found in gc.get_objects():
            if (issubclass(type(found), torch.nn.parallel.DistributedDataParallel)
                    and any(id(param) in mine for param in found.parameters())):
                raise Error("in_backward: DistributedDataParallel averages gradients when parameters are "
                            "updated already; leave the model as it is, and call opt.distributed()")

    def _engine_of(self, param):
        if id(param) not in self._where:
            self._follow_groups()
        engine, *_ = self._where.get(id(param), [None])
        return engine if engine is not None and engine.device == param.device else None

    @torch.no_grad()
    def _receive(self, param):
        if not self._has_received:
            self._refuse_ddp()
            self._has_received = True
        if param.numel() == 0 or param.grad is None:  # somebody else has used it
            param.grad = None
            return
        known = self._where.get(id(param))
        if (not self._is_following or known is None
                or not any(known[2] is group for group in self.param_groups)):
            self._follow_groups()
            self._is_following = True
            if id(param) not in self._where:  # its group has left
                return
        if param.device != self._where[id(param)][0].device:
            self._rebuild()
        engine, i, _ = self._where[id(param)]
        gradient, param.grad = param.grad, None
        if self._options["accumulate"]:
            engine.accumulate(i, gradient)
        else:
            engine.follow_settings()
            engine.receive(i, gradient)

    def _accumulate_all(self):
        for engine in self._engines:
            for i, row in enumerate(engine.rows):
                if row.param.grad is not None:
                    engine.accumulate(i, row.param.grad)

    def _apply(self, scaler):
        if self._process_group is not None:
            self._average()
        if scaler is not None or self._options["max_grad_norm"] is not None:
            self._scale(scaler)
        for engine in self._engines:
            engine.apply()

    def _average(self):
        """The mean of all processes' sums. Each takes part with every parameter that is trained, also
        with one that had no gradient here."""
        import torch.distributed as dist
        world, works, small = dist.get_world_size(self._process_group), [], {}
        for engine in self._engines:
            for i, row in enumerate(engine.rows):
                if row.param.requires_grad and not engine.is_summing(i):
                    engine.accumulate(i, torch.zeros_like(row.param))
            for total in engine.sums():
                flat = real_view(total).view(-1)
                flat.div_(world)
                if flat.numel() < 1 << 16:  # these travel together
                    small.setdefault((flat.dtype, flat.device), []).append(flat)
                else:
                    works.append(dist.all_reduce(flat, group=self._process_group, async_op=True))
        for parts in small.values():
            joined = torch.cat(parts)
            dist.all_reduce(joined, group=self._process_group)
            for part, value in zip(parts, joined.split([part.numel() for part in parts])):
                part.copy_(value)
        for work in works:
            work.wait()

    def _scale(self, scaler):
        """Takes the scale of a GradScaler out of the sums and clips them by their norm. Where that
        is not finite they all become NaN, and every update is skipped."""
        sums = [total for engine in self._engines for total in engine.sums()]
        device = sums[0].device if sums else torch.device("cpu")
        factor = torch.ones((), dtype=torch.float64, device=device)
        norm = torch.stack([norm.to(device) for engine in self._engines for norm in engine.norms()]
                           or [0.0 * factor]).norm()
        if scaler is not None:
            known = scaler._per_optimizer_states[id(self)]
            if known["stage"].name != "UNSCALED":
                factor = scaler._get_scale_async().to(device, torch.float64).reciprocal()
            overflow = (~torch.isfinite(norm)).to(torch.float32)
            known["found_inf_per_device"] = {device: overflow}
        self.grad_norm = norm * factor
        if self._options["max_grad_norm"] is not None:
            factor = factor * (self._options["max_grad_norm"] / self.grad_norm).clamp(max=1.0)
        factor = torch.where(torch.isfinite(norm), factor, math.nan)
        for total in sums:
            total.mul_(factor.to(total.device, total.real.dtype))

    @property
    def _step_supports_amp_scaling(self):
        """A GradScaler finds no gradients after updates in the backward pass, nor those of other
        processes: it hands itself to step, which takes the scale out of the sums."""
        return self._options["in_backward"] or self._options["accumulate"]

    def distributed(self, process_group=None) -> "TensorGRaD":
        """Averages compressed sums over the processes of a group (default: all) before each update.

        Every process must have been given the same parameters and settings; their weights become
        those of the group's first, also those of groups that are added later. Not together with
        DistributedDataParallel.
        """
        import torch.distributed as dist
        for group in self.param_groups:
            self._check_sharded(group, {**self._options, "distributed": True})
        self._process_group = process_group if process_group is not None else dist.group.WORLD
        self._options.update(accumulate=True, distributed=True)
        for group in self.param_groups:
            self._broadcast(group["params"])
        self._rebuild()  # sums need memory of their own
        return self

    def _broadcast(self, params):
        import torch.distributed as dist
        first = dist.get_global_rank(self._process_group, 0)
        for param in params:
            dist.broadcast(real_view(param.detach()), first, group=self._process_group)

    # ---- state ----

    def state_dict(self) -> dict[str, Any]:
        """State of all parameters as tensors on the host, of DTensors as DTensors on their mesh (then
        all ranks call it); nothing of it is shared."""
        held = self.state
        self.state = defaultdict(dict, self._export())
        try:
            found = super().state_dict()
        finally:
            self.state = held
        for group in found["param_groups"]:
            group["format"] = FORMAT
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state_dict = state_dict.copy()
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            changed = hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        for group in state_dict["param_groups"]:
            for key in ("lr", "betas", "eps", "weight_decay", "seed", "method"):
                if key not in group:
                    raise Error(f"optimizer state: a parameter group has no '{key}'; this is no state of "
                                "TensorGRaD", c.TG_E_FORMAT)
            if group.get("format", FORMAT) != FORMAT:
                version = text(lib.tg_build().version)
                raise Error(f"optimizer state: it has format {group['format']}, libtgrad {version} reads "
                            f"{FORMAT}; take the version that saved it, or a new optimizer", c.TG_E_FORMAT)
        state_dict["state"] = {key: {part: value for part, value in parts.items() if value != {}}  # of flat states
                               for key, parts in state_dict["state"].items()}
        state_dict["param_groups"] = [{key: value for key, value in group.items() if key != "format"}
                                      for group in state_dict["param_groups"]]
        before = (self._engines, self._where, self._pending, self.param_groups, self.state)
        hooks = self._optimizer_load_state_dict_pre_hooks
        self._optimizer_load_state_dict_pre_hooks = OrderedDict()  # they were called
        self._loading = state_dict
        try:
            # torch would cast moments and bitmaps to the dtype of their weight: it gets none
            super().load_state_dict({**state_dict, "state": {}})
        except BaseException:
            self._engines, self._where, self._pending, self.param_groups, self.state = before
            raise
        finally:
            self._optimizer_load_state_dict_pre_hooks, self._loading = hooks, None

    def __getstate__(self):
        return {**super().__getstate__(), "state": self._export(), "_options": dict(self._options)}

    def __deepcopy__(self, memo):
        twin = memo[id(self)] = type(self).__new__(type(self))
        twin.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        twin._process_group = self._process_group
        return twin

    def __setstate__(self, state):
        loading = self.__dict__.get("_loading")
        if loading is None:  # a copy, or unpickled
            self._begin()
            super().__setstate__(state)
            self._pending = {id(param): (param, parts) for param, parts in self.state.items()}
            self.state.clear()
            for group in self.param_groups:
                self._hook(group["params"])
            return
        super().__setstate__(state)
        saved = itertools.chain.from_iterable(g["params"] for g in loading["param_groups"])
        params = {old: param for old, (_, _, param, _) in zip(saved, self._named())}
        self._forget_engines()
        self._pending = {id(params[old]): (params[old], parts)
                         for old, parts in loading["state"].items() if old in params and parts}
        if self._pending or any(map(is_sharded, params.values())):
            self._prepare()

    # ---- queries ----

    def memory(self) -> dict[str, int]:
        """Bytes by category, and sums of them: "state" is kept for each weight
        (moments, factors, index sets), "total" adds its "workspace", which is shared by all weights
        and about as large as the largest gradient, and the fixed scratch of the "backend". "adamw" is
        the state of torch's AdamW."""
        self._follow_groups()
        found: dict[str, int] = {}
        for engine in self._engines:
            for category, size in engine.memory().items():
                found[category] = found.get(category, 0) + size
        state = sum(found.get(part, 0) for part in ("optimizer", "factors", "indices"))
        dense = sum(engine.dense_bytes() for engine in self._engines)
        return {**found, "state": state, "total": sum(found.values()), "adamw": dense}

    def projection_errors(self) -> dict[str, float]:
        """{name: |G - P(G)| / |G|} of projected parameters at their last refresh."""
        return {name: projection.error for engine in self._engines
                for name, projection in engine.projections().items() if projection.is_projected}

    def stats(self) -> dict[str, int]:
        """Updates made and skipped for NaN or Inf, refreshes and failed decompositions."""
        found = [engine.stats() for engine in self._engines]
        return {key: sum(stats.get(key, 0) for stats in found)
                for key in ("steps", "skipped", "refreshes", "failures")}
