"""The watch of `everlong dev --reload`: which files it sees, and its bounds."""

import asyncio
import os
from pathlib import Path

import pytest

from everlong.embedded import source_watch
from everlong.embedded.source_watch import SourceWatch, find_roots


def write(path: Path, text: str = "x = 1\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_write_a_new_file_and_a_deletion_are_changes(tmp_path: Path) -> None:
    kept = write(tmp_path / "kept.py")
    edited, deleted = write(tmp_path / "app.py"), write(tmp_path / "package" / "gone.py")
    watch = SourceWatch([tmp_path])
    assert watch.find_changes() == set()
    os.utime(edited, ns=(1, 1))
    deleted.unlink()
    created = write(tmp_path / "package" / "new.py")
    assert watch.find_changes() == {edited, deleted, created}
    assert watch.find_changes() == set()
    assert kept.exists()


@pytest.mark.parametrize(
    "place", [".everlong/a.py", "__pycache__/a.py", "site-packages/a.py", "env/lib/a.py", "a.txt"]
)
def test_files_that_are_no_sources_of_the_project_are_no_changes(
    tmp_path: Path, place: str
) -> None:
    write(tmp_path / "env" / "pyvenv.cfg")
    watch = SourceWatch([tmp_path])
    write(tmp_path / place)
    assert watch.find_changes() == set()


def test_the_bounds_keep_the_files_next_to_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = write(tmp_path / "app.py")
    for number in range(6):
        write(tmp_path / f"package{number}" / "module.py")
    assert SourceWatch([tmp_path]).is_complete
    monkeypatch.setattr(source_watch, "FILES_MAX", 3)
    watch = SourceWatch([tmp_path])
    assert (watch.files, watch.is_complete) == (3, False)
    os.utime(app, ns=(1, 1))
    assert watch.find_changes() == {app}
    monkeypatch.setattr(source_watch, "FILES_MAX", 100)
    monkeypatch.setattr(source_watch, "DIRECTORIES_MAX", 3)
    watch = SourceWatch([tmp_path])
    assert (watch.files, watch.is_complete) == (3, False)


async def test_several_writes_are_one_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_watch, "POLL_SECONDS", 0.05)
    one, two = write(tmp_path / "one.py"), write(tmp_path / "two.py")
    watch = SourceWatch([tmp_path])
    change = asyncio.ensure_future(watch.wait_for_change())
    os.utime(one, ns=(1, 1))
    os.utime(two, ns=(1, 1))
    assert await asyncio.wait_for(change, 30) == [one, two]


def test_the_roots_are_here_and_where_the_agents_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    write(here / "app.py")
    write(elsewhere / "team_of_agents" / "__init__.py", "raise RuntimeError")
    write(elsewhere / "single_agent.py", "raise RuntimeError")
    monkeypatch.syspath_prepend(elsewhere)
    assert find_roots(["app:ops"], here) == [here]
    assert find_roots(["team_of_agents.one:ops"], here) == [here, elsewhere / "team_of_agents"]
    assert find_roots(["single_agent:ops"], here) == [here, elsewhere]
    # Installed packages do not change, and a worker reports what does not exist.
    assert find_roots(["pytest:ops", "nowhere_at_all:ops", "sys:x", ":"], here) == [here]
