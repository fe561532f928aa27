"""What ctypes believe of structs and constants is what the C compiler says."""
import ctypes
import pathlib
import shutil
import subprocess

import pytest

from libtgrad import _interface as c

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def structs():
    return {name: kind for name, kind in vars(c).items()
            if isinstance(kind, type) and issubclass(kind, ctypes.Structure)
            and kind is not ctypes.Structure}


def test_layouts_and_constants_are_those_of_the_compiler(tmp_path):
    compiler = shutil.which("cc") or shutil.which("clang")
    if not compiler:
        pytest.skip("no C compiler")
    lines = ["#include <stddef.h>", '#include "tgrad/step.h"', '#include "tgrad/tgrad.h"']
    for name, kind in structs().items():
        lines.append(f'_Static_assert(sizeof({name}) == {ctypes.sizeof(kind)}, "{name}");')
        lines += [f'_Static_assert(offsetof({name}, {field}) == {getattr(kind, field).offset}, '
                  f'"{name}.{field}");' for field, _ in kind._fields_]
    lines += [f'_Static_assert({name} == {value}, "{name}");'
              for name, value in vars(c).items() if name.startswith("TG_")]
    source = tmp_path / "layout.c"
    source.write_text("\n".join(lines) + "\n")
    done = subprocess.run([compiler, "-std=c17", "-fsyntax-only", f"-I{ROOT}/include", source],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(structs()) > 40 and len(c.FUNCTIONS) > 200


def test_every_public_function_is_there():
    from libtgrad import _library
    for header in (ROOT / "include/tgrad").glob("*.h"):
        for name in c.FUNCTIONS:
            assert getattr(_library.lib, name).argtypes is not None
    text = "".join(path.read_text() for path in (ROOT / "include/tgrad").glob("*.h"))
    assert text.count("TG_API") - text.count("define TG_API") == len(c.FUNCTIONS)
