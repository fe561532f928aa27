"""What the modules for PyTorch share: dtypes, and contexts of the library on torch's devices."""
import torch

from ._library import Context, Error, c

DTYPES = {torch.float32: c.TG_F32, torch.float64: c.TG_F64, torch.bfloat16: c.TG_BF16,
          torch.float16: c.TG_F16, torch.complex64: c.TG_C64, torch.complex128: c.TG_C128,
          torch.complex32: c.TG_CF16}
KINDS = {dtype: kind for kind, dtype in DTYPES.items()}  # dtypes of the library as torch's
_STREAM_LEGACY = 1  # cudaStreamLegacy, which torch calls 0


def describe(tensor):
    return f"{'x'.join(map(str, tensor.shape)) or 'scalar'} {str(tensor.dtype)[6:]}"


def real_view(tensor):
    """The tensor, or the real and imaginary parts of a complex one."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _torch_memory(device):
    """torch's caching allocator as one of the library."""
    types = dict(c.tg_allocator._fields_)

    def alloc(_, size, place, stream):
        try:
            return torch.cuda.caching_allocator_alloc(
                size, device, 0 if stream == _STREAM_LEGACY else stream or 0)
        except Exception:  # the library reports that there is no memory
            return None

    def release(_, block, size, place, stream):
        torch.cuda.caching_allocator_delete(block)

    return c.tg_allocator(types["alloc"](alloc), types["release"](release))


def make_context(device, stream, math=None):
    if device.type == "cpu":
        return Context("cpu", threads=torch.get_num_threads(), logs=True)
    with torch.cuda.device(device):
        try:
            return Context("cuda", logs=True, device=device.index, stream=stream or _STREAM_LEGACY,
                           allocator=_torch_memory(device), math=math)
        except Error as error:
            raise Error(f"tensors on {device}: {error}; `make wheel TG_CUDA=ON` builds it with CUDA, or move them to "
                        "the CPU", error.status) from None
