"""The commands of the README: make help tells them, set-up looks at Python and Java first."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def make(*arguments: str) -> str:
    done = subprocess.run(
        ["make", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout


def test_help_is_the_default_and_names_every_command() -> None:
    told = make("help")
    assert told == make()
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert phony is not None
    for target in set(phony[1].split()) - {"help"}:
        assert f"make {target} " in told, target


def test_every_command_can_be_planned() -> None:
    for target in re.findall(r"^make (\w+)", make("help"), re.MULTILINE):
        make("--dry-run", target)


def test_ci_runs_lint_and_test_and_nothing_else() -> None:
    lines = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    commands = [line for line in lines if line and not line.startswith(("#", "set ", "cd "))]
    assert commands == ["make lint", "make test"]


class Machine:
    """A PATH with nothing but the programs that a test puts there."""

    def __init__(self, root: Path) -> None:
        self.bin = root / "bin"
        self.venv = root / "venv"
        self.jvms = root / "jvm"
        self.bin.mkdir()
        for name in ("sh", "sed", "head", "rm", "touch", "cp"):
            found = shutil.which(name)
            assert found is not None
            (self.bin / name).symlink_to(found)
        self.program("id", "echo 1000")

    def program(self, name: str, script: str) -> Path:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    def java(self, version: str, name: str = "java") -> Path:
        return self.program(name, f"echo 'openjdk version \"{version}\"' >&2")

    def python(self) -> None:
        """A Python that fits and makes folders that look like virtual environments."""
        self.program(
            "python3",
            'case "$2" in\n'
            f'venv) /bin/mkdir -p "$3/bin" && cp "{self.bin}/python3" "$3/bin/python" ;;\n'
            "esac",
        )

    def setup(self, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/sh", ROOT / "tools" / "setup", self.venv],
            env={"PATH": str(self.bin), "PENSTOCK_JVMS": str(self.jvms), **environment},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_setup_makes_the_environment_and_is_idempotent(machine: Machine) -> None:
    machine.java("17.0.1")
    machine.python()
    assert machine.setup().returncode == 0
    assert (machine.venv / "bin" / "python").exists()
    again = machine.setup()
    assert (again.returncode, again.stderr) == (0, "")


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_292"])
def test_setup_without_java_says_how_to_get_it(machine: Machine, version: str) -> None:
    machine.python()
    machine.java(version)
    done = machine.setup()
    assert done.returncode == 1
    assert "needs Java 17 or newer" in done.stderr
    assert "openjdk-17-jre-headless" in done.stderr
    assert not machine.venv.exists()


def test_setup_without_python_says_how_to_get_it(machine: Machine) -> None:
    machine.java("21.0.1")
    machine.program("python3", "exit 1")
    done = machine.setup()
    assert done.returncode == 1
    assert "needs Python 3.11 or newer" in done.stderr


def test_setup_finds_a_java_outside_the_path(machine: Machine) -> None:
    machine.python()
    place = machine.jvms / "java-17" / "bin"
    place.mkdir(parents=True)
    machine.java("17.0.1", "other").rename(place / "java")
    assert machine.setup().returncode == 0
    assert (machine.venv / "java_home").read_text() == f"{place.parent}\n"


def test_a_java_home_that_is_too_old_is_not_used(machine: Machine, tmp_path: Path) -> None:
    machine.python()
    machine.program(
        "java",
        "echo 'openjdk version \"17.0.1\"' >&2\n"
        '[ "$1" = -version ] || echo "    java.home = /opt/jdk-17" >&2',
    )
    old = tmp_path / "old" / "bin"
    old.mkdir(parents=True)
    machine.java("11.0.1", "java11").rename(old / "java")
    assert machine.setup(JAVA_HOME=str(old.parent)).returncode == 0
    assert (machine.venv / "java_home").read_text() == "/opt/jdk-17\n"


def test_setup_installs_java_as_root_on_debian(machine: Machine) -> None:
    machine.python()
    machine.program("id", "echo 0")
    fresh = machine.java("21.0.1", "fresh-java")
    machine.program(
        "apt-get",
        f'case "$*" in *openjdk-21*) cp "{fresh}" "{machine.bin}/java" ;; install*) exit 1 ;; esac',
    )
    done = machine.setup()
    assert (done.returncode, "installing openjdk-17-jre-headless" in done.stderr) == (0, True)
