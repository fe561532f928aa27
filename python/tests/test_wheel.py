"""What is checked of a wheel, and the diagnosis of an installation."""
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TAGGED = "libtgrad-0.1.0-py3-none-manylinux_2_35_x86_64.whl"
CONTENT = ("libtgrad/libtgrad.so", "libtgrad/tgrad", "libtgrad/tgrad-h5", "libtgrad/_interface.py")


def check(path, *names):
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"")
    return subprocess.run([sys.executable, ROOT / "scripts/check_wheel", path], text=True, capture_output=True)


def test_a_wheel_that_is_as_it_should_be(tmp_path):
    done = check(tmp_path / TAGGED, *CONTENT)
    assert done.returncode == 0 and "0.0 MB" in done.stdout, done.stderr


@pytest.mark.parametrize("name, names, sentence", [
    (TAGGED, CONTENT[1:], "libtgrad/libtgrad.so is missing"),
    (TAGGED, (*CONTENT, "libtgrad.libs/libfftw3f-0a1b2c.so.3"), "may not be inside"),
    (TAGGED, (*CONTENT, "libtgrad.libs/libcublas-0a1b2c.so.13"), "may not be inside"),
    ("libtgrad-0.1.0-py3-none-linux_x86_64.whl", CONTENT, "its tag is not py3-none-manylinux_*"),
])
def test_a_wheel_that_must_not_leave(tmp_path, name, names, sentence):
    done = check(tmp_path / name, *names)
    assert done.returncode == 1 and sentence in done.stderr


def test_a_library_outside_of_the_wheel_is_named(tmp_path):
    with zipfile.ZipFile(tmp_path / TAGGED, "w") as archive:
        archive.write(sys.executable, "libtgrad/tgrad")
    done = subprocess.run([sys.executable, ROOT / "scripts/check_wheel", tmp_path / TAGGED], text=True,
                          capture_output=True)
    libraries = subprocess.run(["ldd", sys.executable], text=True, capture_output=True).stdout
    for library in ("libpython3", "libutil"):  # how an interpreter is linked differs
        assert (f"needs {library}" in done.stderr) == (library in libraries)


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
@pytest.mark.parametrize("library", ["libcublas.so.13", "libcudart.so.13"])
def test_a_library_that_cannot_be_loaded_without_cuda_is_refused(tmp_path, library):
    source = tmp_path / "empty.c"
    source.write_text("")
    command = ["cc", "-shared", "-Wl,--no-as-needed", source]
    subprocess.run([*command, "-o", tmp_path / library, f"-Wl,-soname,{library}"], check=True)
    subprocess.run([*command, "-o", tmp_path / "libtgrad.so", tmp_path / library], check=True)
    with zipfile.ZipFile(tmp_path / TAGGED, "w") as archive:
        for name in CONTENT[1:]:
            archive.writestr(name, b"")
        archive.write(tmp_path / "libtgrad.so", CONTENT[0])
    done = subprocess.run([sys.executable, ROOT / "scripts/check_wheel", tmp_path / TAGGED], text=True,
                          capture_output=True)
    assert done.returncode == 1 and f"libtgrad/libtgrad.so needs {library}" in done.stderr


def test_diagnosis():
    done = subprocess.run([sys.executable, "-m", "libtgrad"], text=True, capture_output=True,
                          cwd=ROOT / "python")
    assert done.returncode == 0, done.stderr
    facts = {line[:10].strip(): line[11:] for line in done.stdout.splitlines()}
    assert facts["libtgrad"].startswith("0.") and "libtgrad" in facts["libtgrad"]
    assert "OpenBLAS" in facts["cpu"] and facts["numpy"][0].isdigit()
    assert facts["torch"][0].isdigit() or "pip install torch" in facts["torch"]
    assert "cuda" in facts


def test_diagnosis_of_a_library_that_cannot_be_loaded(tmp_path):
    package = tmp_path / "libtgrad"
    package.mkdir()
    for source in (ROOT / "python/libtgrad").glob("*.py"):
        (package / source.name).write_bytes(source.read_bytes())
    (package / "libtgrad.so").write_bytes(bytes(1000))
    done = subprocess.run([sys.executable, "-m", "libtgrad"], text=True, capture_output=True, cwd=tmp_path,
                          env={"PATH": "/usr/bin"})
    assert done.returncode == 1 and "cannot be loaded" in done.stdout
    assert f"{package}/libtgrad.so: invalid ELF header" in done.stderr
