"""Tests of the package in this tree, with the library of the build folder that the caller names."""
import faulthandler
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "python"))
faulthandler.enable()  # a crash of the interpreter has a traceback
