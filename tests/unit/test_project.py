"""`everlong init`: what it writes, what it refuses, and what a wheel has of it."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder
from ruamel.yaml import YAML
from typer.testing import CliRunner

from everlong.cli.app import app
from everlong.errors import ConfigError
from everlong.project import NEXT, TEMPLATE, create_project
from tests.unit.test_documents import settings

ROOT = Path(__file__).parents[2]
NEEDS_NO_TYPER = "import sys; sys.modules['typer'] = None; from everlong.__main__ import main; "


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("projects") / "My Agent"
    create_project(place)
    return place


def test_every_file_is_written_and_named_in_the_readme(project: Path) -> None:
    assert {path.name for path in project.iterdir()} == TEMPLATE.keys()
    readme = (project / "README.md").read_text()
    assert [command for command, _ in NEXT if command not in readme] == []
    named = TEMPLATE.keys() - {"README.md", ".gitignore"}
    assert [path for path in named if f"`{path}`" not in readme] == []
    assert "PROJECT-NAME" not in "".join(path.read_text() for path in project.iterdir())


def test_its_settings_are_read_and_hold_no_secret(project: Path) -> None:
    text = (project / ".env.example").read_text()
    values = dict(re.findall(r"^#?([A-Z_]+)=(.*)$", text, flags=re.MULTILINE))
    ours = {name for name in values if name.startswith("EVERLONG_")}
    assert ours >= {"EVERLONG_STORE", "EVERLONG_TOKEN", "EVERLONG_KEYS", "EVERLONG_TASK_QUEUE"}
    assert ours - settings() == set()
    assert {value for name, value in values.items() if re.search("KEY|TOKEN", name)} == {""}
    assert values["EVERLONG_STORE"] == "s3://bucket/my-agent"


def test_its_description_and_its_containers_fit_together(project: Path) -> None:
    described = tomllib.loads((project / "pyproject.toml").read_text())
    assert described["project"]["name"] == "my-agent"
    assert {f"{name}.py" for name in described["tool"]["setuptools"]["py-modules"]} == {"app.py"}
    services = YAML(typ="safe").load(project / "docker-compose.yml")["services"]
    assert services["worker"]["command"] == ["worker", "app:agent"]
    assert services["dashboard"]["ports"] == ["127.0.0.1:8234:8234"]
    assert "COPY pyproject.toml app.py ./" in (project / "Dockerfile").read_text()


def test_its_compose_file_follows_the_specification(project: Path) -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    subprocess.run(
        [*check, str(project / "docker-compose.yml")], check=True, capture_output=True, timeout=60
    )


def test_its_python_passes_ruff(project: Path) -> None:
    ruff = [sys.executable, "-m", "ruff"]
    rules = ["check", "--isolated", "--select", "A,B,C4,D,E,F,I,N,PIE,PT,RET,RUF,SIM,UP,W"]
    rules += ["--ignore", "D103,D203,D213", "--line-length", "100"]
    for arguments in (rules, ["format", "--isolated", "--line-length", "100", "--check"]):
        done = subprocess.run(
            [*ruff, *arguments, "--no-cache", "."],
            cwd=project,
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout


def test_a_directory_with_files_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("mine")
    with pytest.raises(ConfigError, match=rf"{tmp_path} is not empty: it has app.py\. Nothing was"):
        create_project(tmp_path)
    assert (tmp_path / "app.py").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 1
    result = CliRunner().invoke(app, ["init", str(tmp_path / "app.py")])
    assert isinstance(result.exception, ConfigError)
    assert "everlong init" in str(result.exception)


def test_a_repository_and_an_environment_may_be_there(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".venv").mkdir()
    assert "pytest" in create_project(tmp_path)


def test_a_wheel_has_the_template() -> None:
    included = {each.distribution_path for each in WheelBuilder(str(ROOT)).recurse_included_files()}
    wanted = {f"everlong/project/template/{source}" for source, _ in TEMPLATE.values()}
    assert wanted - included == set()


@pytest.mark.parametrize("arguments", [["--version"], ["init", "made"]])
def test_version_and_init_need_no_extra(tmp_path: Path, arguments: list[str]) -> None:
    code = f"{NEEDS_NO_TYPER}sys.argv = {['everlong', *arguments]!r}; main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "everlong" in done.stdout
    if arguments[0] == "init":
        assert {path.name for path in (tmp_path / "made").iterdir()} == TEMPLATE.keys()
