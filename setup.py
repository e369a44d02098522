"""What is built has the same bytes in every checkout: no owners, modes and times of its files."""

import gzip
import os
import tarfile
import time
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.sdist import sdist

MODE = 0o644


class PlainWheel(bdist_wheel):
    """Packs files that all may read and their owner may change."""

    def write_wheelfile(self, wheelfile_base: str, *options: str, **more: str) -> None:
        """Set the modes at the last step before the files are packed."""
        super().write_wheelfile(wheelfile_base, *options, **more)
        for path in Path(self.bdist_dir).rglob("*"):
            if path.is_file():
                path.chmod(MODE)


class PlainSource(sdist):
    """Packs files of nobody, at SOURCE_DATE_EPOCH."""

    def make_archive(self, base_name: str, *_: object, base_dir: str, **__: object) -> str:
        """Pack as a .tar.gz."""
        built = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))

        def plain(file: tarfile.TarInfo) -> tarfile.TarInfo:
            changes = {"mtime": built, "mode": 0o755 if file.isdir() else MODE}
            return file.replace(**changes, uid=0, gid=0, uname="", gname="", deep=False)

        path = f"{base_name}.tar.gz"
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with (
            gzip.GzipFile(path, "wb", mtime=built) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            archive.add(base_dir, filter=plain)
        return path


setup(cmdclass={"bdist_wheel": PlainWheel, "sdist": PlainSource})
