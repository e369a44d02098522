"""A wheel has the same bytes in every checkout: not the modes that files happen to have there."""

from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel

MODE = 0o644


class PlainWheel(bdist_wheel):
    """Packs files that all may read and their owner may change."""

    def write_wheelfile(self, wheelfile_base: str, *options: str, **more: str) -> None:
        """Set the modes at the last step before the files are packed."""
        super().write_wheelfile(wheelfile_base, *options, **more)
        for path in Path(self.bdist_dir).rglob("*"):
            if path.is_file():
                path.chmod(MODE)


setup(cmdclass={"bdist_wheel": PlainWheel})
