"""Finding and loading the library, and its errors as exceptions."""
import ast
import inspect
import os
import pathlib
import subprocess
import sys

import pytest

import libtgrad
from libtgrad import _library
from libtgrad._library import Context, Error, c, lib

PACKAGE = str(pathlib.Path(libtgrad.__file__).parent.parent)


def run(code, **environment):
    return subprocess.run([sys.executable, "-X", "faulthandler", "-c", code], text=True, capture_output=True,
                          env={**os.environ, "PYTHONPATH": PACKAGE, **environment})


def test_version_is_the_librarys():
    assert libtgrad.__version__ == f"{c.TG_VERSION_MAJOR}.{c.TG_VERSION_MINOR}.{c.TG_VERSION_PATCH}"


def test_import_takes_no_torch():
    done = run("import sys, libtgrad; sys.exit('torch' in sys.modules)")
    assert done.returncode == 0, done.stderr


def test_without_torch_the_optimizer_says_so():
    done = run("import sys; sys.modules['torch'] = None\nimport libtgrad; libtgrad.TensorGRaD")
    assert "libtgrad.TensorGRaD needs PyTorch" in done.stderr and done.returncode == 1


@pytest.mark.parametrize("missing", ["torch", "neuralop"])
def test_help_lists_what_can_be_imported(missing):
    done = run(f"import sys; sys.modules['{missing}'] = None\n"
               "import libtgrad, inspect, pydoc\nfrom libtgrad import *\n"
               "print(train, len(inspect.getmembers(libtgrad)))\n"
               "assert 'to_neuralop' not in dir(libtgrad) and 'Model' in pydoc.render_doc(libtgrad)")
    assert done.returncode == 0 and "train" in done.stdout, done.stderr


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'TensorGrad'"):
        libtgrad.TensorGrad


def test_type_checkers_see_every_name():
    tree = ast.parse(inspect.getsource(libtgrad))
    seen = {alias.asname: node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
            for alias in node.names if alias.asname}
    assert seen == libtgrad._LAZY


def test_a_library_that_cannot_be_loaded_is_named(tmp_path):
    (tmp_path / "libtgrad.so").write_bytes(bytes(1000))
    folder = tmp_path / "python" / "libtgrad"
    folder.mkdir(parents=True)
    for name in ("__init__.py", "_library.py", "_interface.py"):
        (folder / name).write_bytes((pathlib.Path(libtgrad.__file__).parent / name).read_bytes())
    done = run("import libtgrad", PYTHONPATH=str(tmp_path / "python"),
               LIBTGRAD_LIBRARY=str(tmp_path / "libtgrad.so"))
    assert "ImportError: libtgrad: no shared library could be loaded" in done.stderr
    assert f"{tmp_path}/libtgrad.so: invalid ELF header" in done.stderr


def test_errors_carry_the_sentence_and_the_status():
    context = Context()
    with pytest.raises(Error, match="backend 'abacus' is not in this build; it has ref, cpu") as caught:
        context.check(lib.tg_backend_select(context, b"abacus"))
    assert caught.value.status != c.TG_OK and isinstance(caught.value, RuntimeError)


def test_a_context_that_cannot_be_made_says_why():
    with pytest.raises(Error, match="threads"):
        Context(threads=-1)


def test_objects_end_before_their_context(caplog):
    class Owner:
        pass

    archive, owner = _library.ctypes.c_void_p(), Owner()
    context = Context(logs=True)
    context.check(lib.tg_archive_create(context, archive))
    context.own(owner, lib.tg_archive_destroy, archive)
    del context, owner
    assert archive.value is None and not caplog.records


def test_threads_wait_passively_on_a_busy_machine(monkeypatch):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    for busy in (False, True):
        monkeypatch.setattr(_library, "_is_busy", lambda busy=busy: busy)
        assert _library._environment().get("OMP_WAIT_POLICY") == ("passive" if busy else None)
    monkeypatch.setenv("GOMP_SPINCOUNT", "5")  # the user's policy stays
    assert "OMP_WAIT_POLICY" not in _library._environment()
    assert "OMP_WAIT_POLICY" not in os.environ


@pytest.mark.parametrize("running, is_busy", [(1, False), (1 + 4 * (os.cpu_count() or 1), True)])
def test_a_busy_machine_is_recognized(running, is_busy, monkeypatch):
    line = f"0.10 0.20 0.30 {running}/400 12345"
    monkeypatch.setattr(_library.pathlib.Path, "read_text", lambda self, *_: line)
    assert _library._is_busy() == is_busy
