"""Prepares the installed Spark to start faster. `make setup` runs it once, in the project's folder.

A driver spends most of its start on loading 16,000 classes, and each Python process that Spark starts compiles the modules of `pyspark.zip` again.
Two files save that work:

- an archive of the classes that a short job loaded, which `conf/spark-defaults.conf` names in Java's options. Java ignores an archive that is
  missing, or that another Java or other jars made, so a driver without one only starts slower;
- `pyspark.zip`, with the compiled modules beside their sources. Another version of Python ignores them.

Each file gets its name only when it is whole: Java crashes on half an archive.
"""

from __future__ import annotations

import py_compile
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pyspark

ARCHIVE = Path(".cache/spark.jsa")
SETTINGS = Path("conf/spark-defaults.conf")
JAVA_OPTIONS = "spark.driver.extraJavaOptions"

PROGRAM = Path(__file__).with_name("spark_start_program.py")
TIMEOUT_S = 600
NO_ARCHIVE = "Spark starts some seconds slower without it"


def compile_modules(archive: Path) -> None:
    """Rewrites the zip file so that each source has a compiled module beside it. Does nothing if all have one. Raises `OSError`, and
    `py_compile.PyCompileError`."""
    with zipfile.ZipFile(archive) as old:
        names = set(old.namelist())
        lacking = [name for name in names if name.endswith(".py") and f"{name}c" not in names]
        if not lacking:
            return
        with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
            work = Path(folder)
            new = work / archive.name
            source, compiled = work / "module.py", work / "module.pyc"
            with zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as target:
                for name in old.namelist():
                    data = old.read(name)
                    target.writestr(old.getinfo(name), data, zipfile.ZIP_DEFLATED)
                    if name in lacking:
                        source.write_bytes(data)
                        py_compile.compile(
                            str(source),
                            str(compiled),
                            dfile=f"{archive}/{name}",
                            doraise=True,
                            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
                        )
                        target.writestr(f"{name}c", compiled.read_bytes())
            new.replace(archive)


def archive_classes(project: Path, program: Path = PROGRAM) -> str | None:
    """Rebuilds the archive with a driver that runs `program`. Returns the error in one sentence, or None."""
    target = project / ARCHIVE
    target.unlink(missing_ok=True)
    log = target.with_name("spark-start.log")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="archiving-") as folder:
        new = Path(folder) / "new.jsa"
        # Relative, because Spark splits options at spaces. An archive counts only for the class path, and so the settings, that it was made with.
        options = _java_options((project / SETTINGS).read_text()).replace(
            f"-XX:SharedArchiveFile={ARCHIVE}", f"-XX:ArchiveClassesAtExit={new.relative_to(project)}"
        )
        command = [str(Path(sys.executable).with_name("spark-submit")), "--properties-file", str(SETTINGS)]
        command += ["--conf", f"{JAVA_OPTIONS}={options}", str(program), folder]
        with log.open("w") as output:
            try:
                done = subprocess.run(
                    command,
                    cwd=project,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    timeout=TIMEOUT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return f"no archive of Spark's classes after {TIMEOUT_S // 60} minutes; {NO_ARCHIVE} (log: {log})"
        if done.returncode != 0 or not new.exists():
            return f"no archive of Spark's classes could be made; {NO_ARCHIVE} (log: {log})"
        new.replace(target)
    log.unlink()
    return None


def _java_options(settings: str) -> str:
    return next(line.split(maxsplit=1)[1] for line in settings.splitlines() if line.startswith(JAVA_OPTIONS))


def main() -> int:
    project = Path.cwd()
    problems = []
    try:
        compile_modules(Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip")
    except (OSError, py_compile.PyCompileError) as error:
        problems.append(f"the modules in pyspark.zip could not be compiled, so Spark's Python processes start slower: {error}")
    try:
        problem = archive_classes(project)
    except OSError as error:
        problem = f"no archive of Spark's classes: {error.strerror} at {error.filename}; {NO_ARCHIVE}"
    problems += [problem] if problem is not None else []
    for each in problems:
        print(f"setup: {each}", file=sys.stderr)
    return 0  # Spark works without


if __name__ == "__main__":
    sys.exit(main())
