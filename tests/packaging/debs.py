"""The Debian packages for tests: made once by packaging/build-deb, and again when a file that goes into them is newer.

The plug-in is taken from the build tree where it has one, since its kernels take minutes to compile.
"""
import os
import pathlib
import shutil
import subprocess

SOURCE = pathlib.Path(os.environ.get("TILETRACK_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
BIN = pathlib.Path(os.environ.get("TILETRACK_BIN", SOURCE / "build" / "bin"))
FOLDER = BIN.parent / "deb"
PLUGIN = BIN / "tiletrack-cuda.so"
PROGRAMS = ("dh", "dpkg-buildpackage", "lintian", "fakeroot", "cmake", "ninja")
PACKED = ("CMakeLists.txt", "LICENSE", "README.md", "config", "core", "cuda", "daemon", "docs", "models", "packaging", "systemd")


def why_not():
    """Why no packages can be made here, or None."""
    for program in PROGRAMS:
        if not shutil.which(program):
            return f"{program} is not installed"
    return None


def newest():
    times = [PLUGIN.stat().st_mtime] if PLUGIN.exists() else []
    for name in PACKED:
        path = SOURCE / name
        for file in [path] if path.is_file() else path.rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                times.append(file.stat().st_mtime)
    return max(times)


def packages():
    """{name: path} of the packages that were made, debug symbols left out."""
    stamp = FOLDER / "made"
    if not stamp.exists() or float(stamp.read_text()) < newest():
        made_of = newest()
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)
        plugin = ["--plugin", PLUGIN] if PLUGIN.exists() else ["--cuda", "no"]
        process = subprocess.run([SOURCE / "packaging/build-deb", "--no-install", "--binary", "--output", FOLDER / "dist",
                                  "--work", FOLDER / "work", *plugin], stdin=subprocess.DEVNULL, capture_output=True,
                                 text=True, errors="replace")
        (FOLDER / "log").write_text(process.stdout + process.stderr)
        if process.returncode:
            raise AssertionError(f"packaging/build-deb: {process.returncode}\n{(process.stdout + process.stderr)[-6000:]}")
        stamp.write_text(str(made_of))
    return {p.name.split("_")[0]: p for p in sorted((FOLDER / "dist").glob("*.deb")) if "dbgsym" not in p.name}
