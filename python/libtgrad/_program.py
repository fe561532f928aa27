"""The program `tgrad`, which the wheel has beside the library; imports nothing of the package."""
import os
import pathlib


def find_program():
    """The program `tgrad` of this package or source tree; None where there is none."""
    package = pathlib.Path(__file__).resolve().parent
    named = os.environ.get("LIBTGRAD_LIBRARY")
    places = [package / "tgrad"]
    if named:
        places.append(pathlib.Path(named).resolve().parent.parent / "bin" / "tgrad")
    places += [package.parent.parent / folder / "bin" / "tgrad" for folder in ("build-cuda", "build")]
    return next((str(place) for place in places if os.access(place, os.X_OK)), None)
