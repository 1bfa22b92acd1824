"""SHA-256 of every file of a version, so that a changed, cut or missing one is found.

    seal(version_dir)      # last, once every other file is there
    check(version_dir)     # raises DataError naming the first bad file

The sums are in `assets.extra/manifest.json`. They find damage, and tampering by anyone who
does not also rewrite the manifest; it is no signature.
"""

from __future__ import annotations

import json

from export import files
from trainer.errors import DataError

MANIFEST = "assets.extra/manifest.json"


def seal(version_dir: str) -> None:
    """Writes the manifest of `version_dir` as it is now."""
    sums = {name: files.sha256(files.join(version_dir, name)) for name in _files(version_dir)}
    files.make_dirs(files.join(version_dir, "assets.extra"))
    text = json.dumps({"sha256": sums}, indent=2) + "\n"
    files.write_bytes(files.join(version_dir, MANIFEST), text.encode())


def check(version_dir: str) -> int:
    """Checks every file of `version_dir`; returns how many there are.

    Raises:
      DataError: names the file that is missing, differs or does not belong there.
    """
    path = files.join(version_dir, MANIFEST)
    if not files.exists(path):
        raise DataError(_no_manifest(version_dir))
    try:
        sums = dict(json.loads(files.read_bytes(path))["sha256"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: not a manifest ({error}); export the model again") from None
    found = _files(version_dir)
    for name, expected in sums.items():
        where = files.join(version_dir, name)
        if name not in found:
            raise DataError(f"{where}: missing; export the model again")
        if (actual := files.sha256(where)) != expected:
            raise DataError(
                f"{where}: sha256 is {actual[:12]}…, the manifest has {str(expected)[:12]}…; "
                "the file was changed or cut, export the model again"
            )
    for name in found:
        if name not in sums:
            raise DataError(
                f"{files.join(version_dir, name)}: not in the manifest; it was added after "
                "the export, remove it"
            )
    return len(sums)


def _files(version_dir: str) -> list[str]:
    return [name for name in files.walk(version_dir) if name != MANIFEST]


def _no_manifest(version_dir: str) -> str:
    versions = [name for name in files.list_names(version_dir) if name.isdigit()]
    if versions:
        newest = files.join(version_dir, max(versions, key=int))
        return f"{version_dir}: a base path, not a version; name one of its versions: {newest}"
    if not files.exists(version_dir):
        return f"{version_dir}: no such directory; name a version, such as BASE/1"
    return (
        f"{files.join(version_dir, MANIFEST)}: missing; the version was cut, or is not one "
        "of export.saved_model"
    )
