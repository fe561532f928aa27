"""The optimizer of DTensors: parameters sharded over the ranks of a mesh, as FSDP2 (fully_shard) makes them.

One rank owns each parameter: it keeps the state and computes the update. In each step it receives the
shards of the gradient and the weight, calls the library with the whole tensors, and sends back the
shards of the new weight. The result does not depend on the mesh, and state and work are divided over
the ranks. A rank sends and receives about 3 bytes per byte of its own shards and holds the whole
tensors of one round at a time. Sums of several backward passes are their owner's, too.
"""
import functools
import math

import torch
import torch.distributed as dist

from . import _settings
from ._engine import Engine, Moved, Row
from ._library import Error, c
from ._torch import DTYPES

try:
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
except ImportError:  # torch was built without torch.distributed
    DTensor, distribute_tensor = (), None

_ROUND = 16 << 20  # bytes of parameters per owner sent together; a larger one is sent alone
_ALIGNMENT = 16


def is_sharded(param):
    return isinstance(param, DTensor)


def mesh_of(param, name):
    """(device, mesh, its dimension that splits the parameter or None, dimension that is split)."""
    cuts = [(i, placement) for i, placement in enumerate(param.placements)
            if type(placement) is not Replicate]
    if len(cuts) > 1 or any(type(placement) is not Shard for _, placement in cuts):
        raise Error(f"weight of {name}: its placements are {tuple(param.placements)}; one dimension of the "
                    "mesh can shard it (Shard), the others replicate it")
    where, cut = cuts[0] if cuts else (None, Shard(0))
    return param.to_local().device, param.device_mesh, where, cut.dim


def _chunk(size, count, index):
    """(start, length) of a part of `size` rows, as Shard divides them: the last ones may be empty."""
    rows = -(-size // count)
    start = min(index * rows, size)
    return start, min(rows, size - start)


def _padded(shape, dtype):
    return -(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT


class Shards:
    """As an Engine, for the parameters of one mesh. Its calls are collective."""

    def __init__(self, rows, groups, seed, accumulates, place):
        self.rows, self.groups, self.place = rows, groups, place
        self.device, self.mesh, where, self.dim = place
        self.group = None if where is None else self.mesh.get_group(where)
        self.count = dist.get_world_size(self.group) if self.group else 1
        self.rank = dist.get_rank(self.group) if self.group else 0
        self._state_placements = [Shard(0) if i == where else Replicate() for i in range(self.mesh.ndim)]
        self._choose_owners()
        self._plan_rounds()
        self._wholes, self._engine = {}, None
        for i, row in enumerate(rows):
            if self._owner[i] == self.rank:
                whole = torch.empty(row.shape, dtype=row.dtype, device=self.device)
                self._wholes[i] = torch.nn.Parameter(whole)
        if self._wholes:
            mine = [Row(whole, rows[i].number, rows[i].name, rows[i].group)
                    for i, whole in self._wholes.items()]
            self._engine = Engine(mine, groups, seed, accumulates)
        self._summing = set()  # parameters with sums, which are their owners'
        self._problem = None  # an Error of this step
        self._let_go()

    def _choose_owners(self):
        """Largest states first, each to the rank with the smallest load."""
        @functools.cache
        def state(group, dtype, shape):
            return _settings.planned_state(self.groups[group], DTYPES[dtype], shape)

        sizes = [state(row.group, row.dtype, tuple(row.shape)) for row in self.rows]
        load, self._owner = [0] * self.count, [0] * len(self.rows)
        for i in sorted(range(len(self.rows)), key=lambda i: -sizes[i]):
            self._owner[i] = load.index(min(load))
            load[self._owner[i]] += sizes[i]

    def _plan_rounds(self):
        """Parameters of each owner that travel together, by round."""
        self._rounds = []
        for owner in range(self.count):
            number, used = 0, 0
            for i, row in enumerate(self.rows):
                if self._owner[i] != owner:
                    continue
                size = row.shape.numel() * row.dtype.itemsize
                if used and used + size > _ROUND:
                    number, used = number + 1, 0
                used += size
                while len(self._rounds) <= number:
                    self._rounds.append([[] for _ in range(self.count)])
                self._rounds[number][owner].append(i)

    def _let_go(self):
        for whole in self._wholes.values():
            whole.grad = None
            whole.data = whole.new_empty(0)

    # ---- messages ----

    def _part_shape(self, shape, rank, dim=0):
        shape = list(shape)
        shape[dim] = _chunk(shape[dim], self.count, rank)[1]
        return shape

    def _part(self, whole, rank, dim=0):
        return whole.narrow(dim, *_chunk(whole.shape[dim], self.count, rank))

    def _exchange(self, outgoing, kinds):
        """Sends outgoing[rank], a list of tensors, to each rank; returns those from each rank, whose
        shapes and dtypes are kinds[rank]."""
        sent = torch.zeros(sum(_padded(t.shape, t.dtype) for part in outgoing for t in part),
                           dtype=torch.uint8, device=self.device)
        at = 0
        for tensor in (t for part in outgoing for t in part):
            flat = tensor.resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)
            sent[at:at + flat.numel()].copy_(flat)
            at += _padded(tensor.shape, tensor.dtype)
        received = sent
        if self.count > 1:
            coming = [sum(_padded(*kind) for kind in part) for part in kinds]
            going = [sum(_padded(t.shape, t.dtype) for t in part) for part in outgoing]
            received = sent.new_empty(sum(coming))
            dist.all_to_all_single(received, sent, coming, going, group=self.group)
        found, at = [], 0
        for part in kinds:
            found.append([])
            for shape, dtype in part:
                size = math.prod(shape) * dtype.itemsize
                found[-1].append(received[at:at + size].view(dtype).view(shape))
                at += _padded(shape, dtype)
        return found

    def _gather(self, value):
        """An object of every rank."""
        if self.count == 1:
            return [value]
        found = [None] * self.count
        dist.all_gather_object(found, value, group=self.group)
        return found

    def _agree(self, problem):
        """Raises the Error of the first rank that has one, on all of them."""
        for found in self._gather(problem and (str(problem), problem.status)):
            if found:
                raise Error(*found)

    # ---- steps ----

    def project_ahead(self):
        pass

    def follow_settings(self):
        if self._engine:
            self._engine.follow_settings()

    def collect(self):
        """The local gradients of all parameters, or None."""
        return [None if row.param.grad is None else self._check(row, row.param.grad) for row in self.rows]

    def _check(self, row, gradient):
        param = row.param
        if param.shape != row.shape or param.dtype != row.dtype:
            raise Error(f"weight of {row.name}: its shape or dtype changed after its state was made",
                        c.TG_E_SHAPE)
        if mesh_of(param, row.name) != self.place:
            raise Moved
        if not is_sharded(gradient) or gradient.shape != row.shape:
            raise Error(f"gradient of {row.name}: a DTensor of the shape of its weight is needed",
                        c.TG_E_SHAPE)
        if gradient.placements != param.placements:
            gradient = gradient.redistribute(self.mesh, param.placements)
        return gradient.to_local()

    @torch.no_grad()
    def step(self, gradients):
        """One update with the result of `collect`."""
        for members in self._rounds:
            self._update(members, {i: gradient for i, gradient in enumerate(gradients) if gradient is not None},
                         lambda _: self._engine.step(self._engine.collect()))
        self.end_step()

    def receive(self, i, gradient):
        """Updates one parameter, and raises no Error before end_step: the other ranks go on."""
        self._update(self._only(i), {i: self._check(self.rows[i], gradient)},
                     lambda _: self._engine.step(self._engine.collect()))

    def end_step(self):
        """Raises the Error of an owner, when all ranks have their weights back; with nonfinite="error" on
        all ranks."""
        problem, self._problem = self._problem, None
        if any(group.get("nonfinite") == "error" for group in self.groups):
            self._agree(problem)
        if problem:
            raise problem

    def _only(self, i):
        return [[i] if owner == self._owner[i] else [] for owner in range(self.count)]

    def _update(self, members, gradients, work):
        """Owners do their work with the whole weights and gradients (None: a weight alone) of those members
        that are listed; all ranks receive shards of the new weights."""
        active = [[i for i in mine if i in gradients] for mine in members]
        if not any(active):
            return
        mine, shards = active[self.rank], {i: self.rows[i].param.to_local() for part in active for i in part}
        sent = {i: (shard,) if gradients[i] is None else (shard, gradients[i]) for i, shard in shards.items()}
        for i, (weight, *gradient) in self._assemble(active, sent).items():
            self._wholes[i].data = weight
            self._wholes[i].grad = gradient[0] if gradient else None
        del sent
        try:
            if mine:
                work([self._place(i) for i in mine])
        except Error as error:
            self._problem = error
        outgoing = [[self._part(self._wholes[i].data, rank, self.dim) for i in mine] for rank in range(self.count)]
        kinds = [[(shards[i].shape, shards[i].dtype) for i in part] for part in active]
        for part, new in zip(active, self._exchange(outgoing, kinds)):
            for i, values in zip(part, new):
                shards[i].copy_(values)
        self._let_go()

    def _assemble(self, active, shards):
        """{i: [whole tensors]} of parameters that this rank owns; shards[i] are their parts here."""
        mine = active[self.rank]
        kinds = [[(self._part_shape(self.rows[i].shape, rank, self.dim), shard.dtype)
                  for i in mine for shard in shards[i]] for rank in range(self.count)]
        parts = self._exchange([[shard for i in part for shard in shards[i]] for part in active], kinds)
        whole = iter([torch.cat(pieces, self.dim) for pieces in zip(*parts)])
        return {i: [next(whole) for _ in shards[i]] for i in mine}

    # ---- sums ----

    def _place(self, i):
        """The number of a parameter in the engine of its owner."""
        return self._engine.place_of(self._wholes[i])

    def accumulate(self, i, gradient):
        found = self._assemble(self._only(i), {i: (self._check(self.rows[i], gradient),)})
        self._summing.add(i)
        try:
            for whole, in found.values():
                self._engine.accumulate(self._place(i), whole)
        except Error as error:
            self._problem = error

    def has_sums(self):
        return bool(self._summing)

    def is_summing(self, i):
        return i in self._summing

    def sums(self):
        return self._engine.sums() if self._engine else []

    def norms(self):
        """That of the sums of all ranks."""
        squares = sum((norm.square() for norm in self._engine.norms()) if self._engine else [],
                      torch.zeros((), dtype=torch.float64, device=self.device))
        if self.count > 1:
            dist.all_reduce(squares, group=self.group)
        return [squares.sqrt()]

    def apply(self):
        summing = dict.fromkeys(self._summing)
        for members in self._rounds:
            self._update(members, summing, lambda places: self._engine.apply(places))
        self._summing.clear()
        self.end_step()

    def discard(self):
        self._summing.clear()
        if self._engine:
            self._engine.discard()

    # ---- state ----

    def save(self):
        """As Engine.save, on every rank: large parts are DTensors, split by their first dimension."""
        mine = self._engine.save() if self._engine else {}
        small = ("method", "counters")
        listed = self._gather({number: {part: tensor if part in small else (tuple(tensor.shape), tensor.dtype)
                                        for part, tensor in parts.items()}
                               for number, parts in mine.items()})
        large = [[(number, part, *kind) for number, parts in of_one.items()
                  for part, kind in parts.items() if part not in small] for of_one in listed]
        outgoing = [[self._part(mine[number][part], rank).to(self.device)
                     for number, part, *_ in large[self.rank]] for rank in range(self.count)]
        kinds = [[(self._part_shape(shape, self.rank), dtype) for *_, shape, dtype in of_one]
                 for of_one in large]
        found = {number: {part: parts[part] for part in small}
                 for of_one in listed for number, parts in of_one.items()}
        for of_one, tensors in zip(large, self._exchange(outgoing, kinds)):
            for (number, part, shape, dtype), tensor in zip(of_one, tensors):
                stride = torch.empty(shape, dtype=dtype, device="meta").stride()
                found[number][part] = DTensor.from_local(
                    tensor.clone(), self.mesh, self._state_placements, run_check=False,
                    shape=torch.Size(shape), stride=stride)
        return {row.number: found[row.number] for row in self.rows}

    def load(self, states):
        """States of `save`, or whole ones, by number. No rank has loaded any if one cannot."""
        problem, mine = None, {}
        try:
            kinds = self._kinds_of(states)
        except Error as error:
            problem, kinds = error, None
        self._agree(problem)
        if any(other != kinds for other in self._gather(kinds)):
            raise Error("optimizer state: the ranks have different states; all of them load the same "
                        "checkpoint", c.TG_E_FORMAT)
        outgoing = [[states[number][part].to_local().to(self.device)
                     for number, part, *_ in of_one] for of_one in kinds]
        wanted = [[(self._part_shape(shape, rank), dtype) for *_, shape, dtype in kinds[self.rank]]
                  for rank in range(self.count)]
        pieces = self._exchange(outgoing, wanted)
        for i in self._wholes:
            number = self.rows[i].number
            if states.get(number):
                mine[number] = dict(states[number])
        for at, (number, part, *_) in enumerate(kinds[self.rank]):
            mine[number][part] = torch.cat([of_one[at] for of_one in pieces])
        try:
            if self._engine:
                self._engine.load(mine)
        except Error as error:
            problem = error
        self._agree(problem)

    def _kinds_of(self, states):
        """(number, part, shape, dtype) of parts that are DTensors, by owner."""
        kinds = [[] for _ in range(self.count)]
        for i, row in enumerate(self.rows):
            for part, tensor in sorted((states.get(row.number) or {}).items()):
                if not is_sharded(tensor):
                    continue
                if tensor.device_mesh != self.mesh or list(tensor.placements) != self._state_placements:
                    raise Error(f"optimizer state: {part} of {row.name} is split over {tensor.device_mesh}, "
                                f"its parameter over {self.mesh}; torch.distributed.checkpoint with "
                                "get_optimizer_state_dict loads what another mesh has saved",
                                c.TG_E_FORMAT)
                kinds[self._owner[i]].append((row.number, part, tuple(tensor.shape), tensor.dtype))
        return kinds

    # ---- queries, about the parameters that this rank owns ----

    def dense_bytes(self):
        return sum(2 * shard.numel() * shard.element_size()
                   for shard in (row.param.to_local() for row in self.rows))

    def memory(self):
        return self._engine.memory() if self._engine else {}

    def projections(self):
        return self._engine.projections() if self._engine else {}

    def stats(self):
        return self._engine.stats() if self._engine else {}
