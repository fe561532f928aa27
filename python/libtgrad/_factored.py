"""Gradients of spectral weights that are never formed: the factors in which they arise go to the optimizer."""
import torch

from ._library import c
from ._torch import KINDS


class Memory:
    """Tensors, and the addresses of a workspace in them."""

    def __init__(self, tensors, shared):
        self.tensors, self.shared = tensors, shared

    @classmethod
    def new(cls, needs, device, forms):
        """Of a size. Room for a dense gradient is part of it only if one may have to be formed."""
        dense, work = (torch.empty(size, dtype=torch.uint8, device=device)
                       for size in (needs.dense_bytes if forms else 0, needs.work_bytes))
        return cls((dense, work), c.tg_shared_workspace(dense.numel(), work.numel(), dense.data_ptr() or None,
                                                        work.data_ptr() or None))

    def has(self, needs):
        return self.shared.dense_bytes >= needs.dense_bytes and self.shared.work_bytes >= needs.work_bytes


class Factored(torch.Tensor):
    """The gradient of a weight, G[i,o,k] = sum_b conj(x[b,i,k]) dy[b,o,k], as x and dy in the memory of
    activations. It passes through autograd unchanged; any other operation forms the dense gradient."""

    @staticmethod
    def __new__(cls, weight, factors, memory):
        return torch.Tensor._make_wrapper_subclass(cls, weight.shape, dtype=weight.dtype, device=weight.device)

    def __init__(self, weight, factors, memory):
        self.factors, self.memory = factors, memory

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return cls(args[0], args[0].factors, args[0].memory)
        args, kwargs = torch.utils._pytree.tree_map_only(cls, cls.dense, (args, kwargs or {}))
        return func(*args, **kwargs)

    def dense(self):
        x, dy = self._array(self.factors.x, 0), self._array(self.factors.dy, 1)
        return torch.einsum("bi...,bo...->io...", x.conj(), dy).to(self.dtype)

    def _array(self, address, channels):
        """A factor as a tensor of complex numbers that torch computes with."""
        shape = (self.factors.batch, self.shape[channels], *self.shape[2:])
        kind = KINDS.get(self.factors.dtype)
        width = kind.itemsize if kind else 4
        size = torch.Size(shape).numel() * width
        for tensor in self.memory.tensors:
            first = address - tensor.data_ptr()
            if 0 <= first and first + size <= tensor.numel():
                values = tensor[first:first + size]
        if kind is None:  # pairs of bf16
            values = torch.view_as_complex(values.view(torch.bfloat16).float().view(-1, 2))
        return values.view(kind or values.dtype).view(shape).to(self.dtype)

    def handed_to(self, param, place):
        """For parameter number `param` of an optimizer."""
        found = type(self.factors).from_buffer_copy(self.factors)
        found.param, found.place = param, place
        return found
