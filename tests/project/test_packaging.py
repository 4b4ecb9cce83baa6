# SPDX-License-Identifier: Apache-2.0
"""What is shipped: the sdist holds every source, the wheel the stub and its marker, every pin its hashes."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
REQUIREMENTS = sorted((ROOT / "requirements").glob("*.txt"))


def setup_py(*arguments: str) -> None:
    """Run setup.py in the checkout."""
    subprocess.run([sys.executable, "setup.py", "--quiet", *arguments], cwd=ROOT, check=True, capture_output=True)


def project() -> dict[str, object]:
    """The table [project] of pyproject.toml."""
    table: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> tarfile.TarFile:
    folder = tmp_path_factory.mktemp("sdist")
    setup_py("egg_info", "--egg-base", str(folder), "sdist", "--dist-dir", str(folder))
    (archive,) = folder.glob("kcodec-*.tar.gz")
    return tarfile.open(archive)


def test_sdist_holds_every_source_of_the_package(sdist: tarfile.TarFile) -> None:
    shipped = {name.partition("/")[2] for name in sdist.getnames()}
    kinds = {".py", ".pyi", ".pyx", ".pxi", ".c", ".h"}
    sources = [path for path in (ROOT / "src").rglob("*") if path.suffix in kinds or path.name == "py.typed"]
    wanted = {str(path.relative_to(ROOT)) for path in sources} | {"LICENSE", "NOTICE", "README.md", "pyproject.toml"}
    assert len(sources) >= 8
    assert wanted - shipped == set()


def test_sdist_holds_what_tests_and_readers_need(sdist: tarfile.TarFile) -> None:
    """Whoever unpacks it can run `make test` and follow every link of the README."""
    shipped = {name.partition("/")[2] for name in sdist.getnames()}
    folders = ("tests", "tools", "benchmarks", "docs", "examples", "requirements")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    wanted = {str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts}
    assert len(wanted) > 300
    assert wanted - shipped == set()
    links = re.findall(r"\]\(([\w./-]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if link not in shipped and not any(name.startswith(link) for name in shipped)] == []


def test_smoke_test_passes_here() -> None:
    """What every wheel is asked; tools/build_wheel.py asks it of one that was installed."""
    done = subprocess.run([sys.executable, "tests/smoke.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("smoke test passed: kcodec ")


def test_every_version_of_python_that_is_promised_gets_a_wheel() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    classifiers = settings["project"]["classifiers"]
    promised = {name.removeprefix("Programming Language :: Python :: 3.") for name in classifiers if ":: 3." in name}
    built = settings["tool"]["cibuildwheel"]["build"]
    assert {f"cp3{minor}-*" for minor in promised} | {"cp314t-*"} == set(built)


def test_sdist_holds_nothing_compiled(sdist: tarfile.TarFile) -> None:
    assert [name for name in sdist.getnames() if name.endswith((".so", ".o", ".pyc"))] == []


def test_metadata_says_what_pyproject_says(sdist: tarfile.TarFile) -> None:
    (member,) = [name for name in sdist.getnames() if re.fullmatch(r"[^/]+/PKG-INFO", name)]
    file = sdist.extractfile(member)
    assert file is not None
    found, wanted = email.message_from_bytes(file.read()), project()
    assert (found["Name"], found["Version"]) == (wanted["name"], wanted["version"])
    assert found["License-Expression"] == "Apache-2.0"
    assert metadata.version("kcodec") == wanted["version"]


def test_wheel_has_python_stub_and_type_marker_but_no_c_source(tmp_path: Path) -> None:
    setup_py("egg_info", "--egg-base", str(tmp_path), "build_py", "--build-lib", str(tmp_path / "lib"))
    built = {str(path.relative_to(tmp_path / "lib")) for path in (tmp_path / "lib").rglob("*") if path.is_file()}
    assert {"kcodec/__init__.py", "kcodec/_fast.pyi", "kcodec/py.typed", "pyspark_kcodec/__init__.py"} <= built
    assert {Path(name).suffix for name in built if Path(name).name != "py.typed"} <= {".py", ".pyi"}


@pytest.mark.parametrize("path", REQUIREMENTS, ids=lambda path: path.stem)
def test_every_pin_has_a_version_and_hashes_and_no_index(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    pins = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert pins
    for pin in pins:
        assert re.fullmatch(r"[\w.-]+==\S+( ; [^#]+?)?(\s+--hash=sha256:[0-9a-f]{64})+\s*", pin), pin[:80]
    assert "://" not in text


def test_runtime_dependencies_are_pinned() -> None:
    pinned = (ROOT / "requirements" / "dev.txt").read_text(encoding="utf-8")
    dependencies = project()["dependencies"]
    assert isinstance(dependencies, list)
    for dependency in dependencies:
        name = re.split(r"[<>=~!]", dependency)[0]
        assert re.search(rf"^{name}==", pinned, re.MULTILINE), name


def pins(name: str) -> set[str]:
    """The packages with versions of a requirements file."""
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
    return set(re.findall(r"^([\w.-]+==[^\s;\\]+)", text, re.MULTILINE))


@pytest.mark.parametrize("name", ["build.txt", "demo.txt", "demo-spark.txt"])
def test_parts_of_the_environment_agree_with_the_whole(name: str) -> None:
    """`make demo` and `make test` share a virtual environment: neither may replace what the other installed."""
    assert pins(name) and pins(name) <= pins("dev.txt")


def test_the_demo_installs_only_what_it_shows() -> None:
    """No linters, other clients, polars or PostgreSQL; Spark is a list of its own."""
    names = {pin.partition("==")[0] for pin in pins("demo.txt")}
    assert names == {"crc32c", "isal", "lz4", "numpy", "pyarrow", "zstandard"}
    unwanted = {"ruff", "mypy", "aiokafka", "kafka-python", "confluent-kafka", "polars", "psycopg", "hypothesis"}
    assert not unwanted & {pin.partition("==")[0] for pin in pins("demo-spark.txt")}


def test_the_installation_does_not_compile_again(tmp_path: Path) -> None:
    """The Makefile builds the extension in place, once; the editable install then takes the metadata alone."""
    folders = ["--build-lib", str(tmp_path / "lib"), "--build-temp", str(tmp_path / "temp")]
    environment = {**os.environ, "KCODEC_EXTENSION": "0"}
    command = [sys.executable, "setup.py", "--quiet", "build_ext", *folders]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, env=environment)
    assert list(tmp_path.rglob("*")) == []
    rules = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert [line for line in rules.splitlines() if "--editable" in line and "KCODEC_EXTENSION=0" not in line] == []
