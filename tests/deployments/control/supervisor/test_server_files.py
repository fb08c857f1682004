"""A server is found by its state file, and never mistaken for another process of the same pid."""

from __future__ import annotations

import dataclasses
import os
import stat
from pathlib import Path

import pytest

from deployments.control.supervisor import server_files
from deployments.control.supervisor.server_files import NoServer, ProcessMark, ServerState

OURS = ProcessMark.of(os.getpid())
RECYCLED = dataclasses.replace(OURS, started_ticks=OURS.started_ticks - 100)
GONE = ProcessMark(2**22 + 1, 1.0)


def state(port: int = 8000, server: ProcessMark = OURS) -> ServerState:
    return ServerState(
        port=port,
        server=server,
        ray_address="127.0.0.1:6379",
        dashboard_url="http://127.0.0.1:8265",
        settings_path="minilm.yaml",
        started_at_s=12.5,
        ports={"http": port},
    )


def test_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = server_files.write(state(), tmp_path / "new" / "folder")
    assert server_files.read(8000, path.parent) == state()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_writing_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    server_files.write(state(), tmp_path)
    again = dataclasses.replace(state(), settings_path="other.yaml")
    server_files.write(again, tmp_path)
    assert server_files.read(8000, tmp_path) == again
    assert [path.name for path in tmp_path.iterdir()] == ["8000.json"]


def test_failed_write_keeps_the_old_state(tmp_path: Path) -> None:
    server_files.write(state(), tmp_path)
    broken = dataclasses.replace(state(), settings_path=object())  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        server_files.write(broken, tmp_path)
    assert server_files.read(8000, tmp_path) == state()
    assert [path.name for path in tmp_path.iterdir()] == ["8000.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"port": 8000}', '{"server": 3}', "null"])
def test_file_that_is_no_state_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "8000.json").write_text(text)
    assert server_files.read(8000, tmp_path) is None
    assert server_files.listing(tmp_path) == []


def test_recycled_pid_is_not_the_server() -> None:
    assert OURS.process() is not None
    assert RECYCLED.process() is None
    assert GONE.process() is None
    assert state().alive
    assert not state(server=RECYCLED).alive


def test_listing_is_by_port_and_includes_stale_ones(tmp_path: Path) -> None:
    for port, server in ((9000, OURS), (800, GONE)):
        server_files.write(state(port, server), tmp_path)
    (tmp_path / "notes.json").write_text("{}")
    assert [each.port for each in server_files.listing(tmp_path)] == [800, 9000]
    assert server_files.listing(tmp_path / "none") == []


def test_only_server_is_found_without_its_port(tmp_path: Path) -> None:
    server_files.write(state(8000), tmp_path)
    server_files.write(state(8001, RECYCLED), tmp_path)
    assert server_files.find(None, tmp_path).port == 8000
    assert server_files.find(8000, tmp_path).port == 8000


def test_stale_server_is_not_found(tmp_path: Path) -> None:
    server_files.write(state(8001, RECYCLED), tmp_path)
    with pytest.raises(NoServer, match="no server runs on port 8001"):
        server_files.find(8001, tmp_path)
    with pytest.raises(NoServer, match="runs here; start one"):
        server_files.find(None, tmp_path)


def test_of_several_servers_one_must_be_named(tmp_path: Path) -> None:
    server_files.write(state(8000), tmp_path)
    server_files.write(state(8001), tmp_path)
    with pytest.raises(NoServer, match=r"--port \(8000, 8001\)"):
        server_files.find(None, tmp_path)
    assert server_files.find(8001, tmp_path).port == 8001


def test_a_server_removes_its_own_files_alone(tmp_path: Path) -> None:
    server_files.write(dataclasses.replace(state(), server_id="theirs"), tmp_path)
    server_files.remove(8000, tmp_path, "ours")
    assert server_files.read(8000, tmp_path) is not None
    server_files.remove(8000, tmp_path, "theirs")
    assert server_files.read(8000, tmp_path) is None


def test_a_process_is_known_whatever_the_wall_clock_says() -> None:
    mark = ProcessMark.of(os.getpid())
    assert mark.started_ticks > 0
    assert dataclasses.replace(mark, created_s=mark.created_s + 3600).process() is not None
    assert dataclasses.replace(mark, started_ticks=mark.started_ticks + 1).process() is None


def test_a_process_of_another_boot_or_machine_is_not_ours() -> None:
    mark = ProcessMark.of(os.getpid())
    assert mark.of_this_boot
    other = dataclasses.replace(mark, boot_id="another")
    assert not other.of_this_boot
    assert other.process() is None


def test_removing_twice_is_fine(tmp_path: Path) -> None:
    server_files.write(state(), tmp_path)
    server_files.remove(8000, tmp_path)
    server_files.remove(8000, tmp_path)
    assert server_files.read(8000, tmp_path) is None


def test_folder_follows_the_xdg_specification() -> None:
    home = Path.home() / ".local" / "state" / "headrace"
    assert server_files.state_folder({"XDG_STATE_HOME": "/x"}) == Path("/x/headrace")
    assert server_files.state_folder({"XDG_STATE_HOME": "relative"}) == home
    assert server_files.state_folder({}) == home


def test_a_state_folder_that_is_a_file_holds_no_state(tmp_path):
    folder = tmp_path / "headrace"
    folder.write_text("in the way")
    assert server_files.read(8000, folder) is None
    server_files.remove(8000, folder)
    assert folder.read_text() == "in the way"


def test_a_run_folder_belongs_to_its_owner_and_goes(monkeypatch, tmp_path):
    monkeypatch.setattr(server_files, "run_folder", lambda port: tmp_path / str(port))
    folder = server_files.make_run_folder(1)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert server_files.make_run_folder(1) == folder
    server_files.remove_run_folder(1)
    assert not folder.exists()
    server_files.remove_run_folder(1)


def test_a_run_folder_that_is_a_link_is_refused(monkeypatch, tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "1").symlink_to(tmp_path / "target")
    monkeypatch.setattr(server_files, "run_folder", lambda port: tmp_path / str(port))
    with pytest.raises(PermissionError, match="remove it"):
        server_files.make_run_folder(1)


def test_a_server_with_another_state_folder_is_known_by_its_run_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(server_files, "run_folder", lambda port: tmp_path / str(port))
    here, elsewhere = (
        dataclasses.replace(state(server=mark), server_id=name)
        for mark, name in ((GONE, "here"), (OURS, "elsewhere"))
    )
    assert server_files.known(8000, tmp_path / "states") == []
    server_files.write(here, tmp_path / "states")
    assert server_files.known(8000, tmp_path / "states") == [here]
    server_files.write(elsewhere, server_files.make_run_folder(8000))
    assert server_files.known(8000, tmp_path / "states") == [here, elsewhere]
    server_files.write(here, server_files.run_folder(8000))
    assert server_files.known(8000, tmp_path / "states") == [here]


def test_a_run_folder_that_is_a_link_says_nothing(monkeypatch, tmp_path):
    server_files.write(state(), tmp_path / "target")
    (tmp_path / "8000").symlink_to(tmp_path / "target")
    monkeypatch.setattr(server_files, "run_folder", lambda port: tmp_path / str(port))
    assert server_files.known(8000, tmp_path / "states") == []
