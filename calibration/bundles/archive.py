"""Export and install a bundle as a .tar.gz or a folder with its two files; both ends check the hashes."""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
import zlib
from pathlib import Path
from typing import Final

from calibration.bundles.bundle import bundle_folder, load_bundle, user_folder
from calibration.bundles.files import ARRAYS_NAME, ENGINES_FOLDER, JSON_NAME, BundleFacts, parse_facts, read_bundle
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.specs import Accelerator
from catalogs.io.output_files import atomic_file, atomic_folder

FILES: Final = (JSON_NAME, ARRAYS_NAME)

#: Largest file of an archive, in bytes. A judgement: shipped ones stay under 2 MiB.
LARGEST_BYTES: Final = 256 * 2**20


def export_bundle(text: str, out: Path) -> Path:
    """Copy the bundle of a hardware name or folder, with its sources and errors, to `out`.

    `out` is an archive where its name ends in .tar.gz or .tgz, else a folder. The same bundle gives the same bytes.

    Raises:
        InputError: The bundle is damaged, `out` cannot be written, or `out` is a folder that is not empty.
    """
    found = bundle_folder(text)
    folder = found if found.is_dir() else found.parent
    read_bundle(folder)
    if out.name.endswith((".tar.gz", ".tgz")):
        _write_archive(folder, out)
        return out
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError("output exists and is not an empty folder", str(out), f"{out}.tar.gz")
    with atomic_folder(out) as part:
        for name in FILES:
            shutil.copyfile(folder / name, part / name)
    return out


def install_bundle(source: Path, hardware: str | None = None) -> Path:
    """Install an exported bundle (archive or folder) for its hardware and return its folder.

    It replaces the user's own bundle of that hardware.

    Raises:
        InputError: The bundle is damaged, or its hardware is not in the catalog, is another machine's "local" hardware,
            or is not `hardware`. Nothing is changed then.
    """
    contents = _contents(source)
    name = parse_facts(contents[JSON_NAME], source).hardware
    if Path(name).name != name or name.startswith("."):  # it becomes the name of a folder
        raise InputError("bundle has no valid hardware name", name)
    with atomic_folder(user_folder() / name, replace=True, keep=(ENGINES_FOLDER,)) as part:
        for file, data in contents.items():
            (part / file).write_bytes(data)
        facts, _ = read_bundle(part)
        load_bundle(_accelerator(facts, hardware), part)
    return user_folder() / name


def _accelerator(facts: BundleFacts, hardware: str | None) -> Accelerator:
    from catalogs.hardware.local import local_hardware

    if hardware is not None and (wanted := parse_hardware(hardware).accelerator.name) != facts.hardware:
        raise InputError("bundle is for other hardware than requested", facts.hardware, wanted)
    if facts.hardware == "local":
        here = local_hardware().accelerator
        if here.name != "local" or not any(here.full_name in s.name for s in facts.sources):
            measured = facts.sources[0].name if facts.sources else "unknown"
            raise InputError(f"bundle was measured on another machine than this one ({here.full_name})", measured)
        return here
    try:
        return parse_hardware(facts.hardware).accelerator
    except InputError:
        raise InputError("bundle is for hardware that is not in the catalog", facts.hardware) from None


def _contents(source: Path) -> dict[str, bytes]:
    """Return the two files from a folder or an archive by name; other files are ignored."""
    try:
        if source.is_dir():
            found = {name: (source / name).read_bytes() for name in FILES if (source / name).is_file()}
        else:
            with tarfile.open(source, "r:*") as archive:
                found = _from_archive(archive)
    except (OSError, tarfile.TarError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "cut short or not an archive"
        raise InputError(f"bundle cannot be read ({reason})", str(source)) from None
    missing = [name for name in FILES if name not in found]
    if missing:
        raise InputError(f"no calibration bundle: {' and '.join(missing)} missing", str(source))
    return found


def _from_archive(archive: tarfile.TarFile) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for member in archive:
        name = Path(member.name).name
        if name in FILES and member.isfile() and name not in found:
            file = archive.extractfile(member)
            if file is None or member.size > LARGEST_BYTES:
                raise InputError("a file of this bundle is too large", member.name)
            found[name] = file.read()
    return found


def _write_archive(folder: Path, out: Path) -> None:
    packed, stem = io.BytesIO(), out.name.removesuffix(".tgz").removesuffix(".tar.gz")
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as archive:
        for name in FILES:
            member = tarfile.TarInfo(f"{stem}/{name}")
            member.size = (folder / name).stat().st_size
            archive.addfile(member, io.BytesIO((folder / name).read_bytes()))
    with atomic_file(out) as part:
        part.write_bytes(packed.getvalue())
