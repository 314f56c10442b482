"""Where data sets lie on this computer."""

import os
from pathlib import Path


def data_root(root: Path | None = None) -> Path:
    """The folder of all data sets: the one given, else ``$CCVR_DATA``, else ``ccvr`` in the user's cache."""
    if root is not None:
        return root.expanduser()
    if named := os.environ.get("CCVR_DATA"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ccvr"


def own_folder(name: str, root: Path | None = None) -> Path:
    """The folder of one data set alone, into which it is downloaded."""
    return data_root(root) / name


def search_folders(name: str, root: Path | None = None) -> tuple[Path, Path]:
    """The folders in which a data set is looked for, the first one wins.

    Its own folder comes before the shared one because MNIST and Fashion-MNIST have the same file names.
    """
    return own_folder(name, root), data_root(root)
