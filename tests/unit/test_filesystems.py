"""Files appear whole or not at all, wherever they are written."""

from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from redrive.staging import filesystems


def test_a_file_is_there_when_it_is_whole(tmp_path: Path) -> None:
    with filesystems.appearing_whole(pafs.LocalFileSystem(), str(tmp_path / "f")) as sink:
        sink.write(b"half")
        sink.flush()
        assert not (tmp_path / "f").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_bytes() == b"half"


def test_what_fails_leaves_what_was_there_before_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("before")

    def fail() -> None:
        with filesystems.appearing_whole(pafs.LocalFileSystem(), str(tmp_path / "f")) as sink:
            sink.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("f", "before")]


class Hdfs(pafs.FileSystemHandler):
    """A filesystem that only notes what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def get_type_name(self) -> str:
        return "hdfs"

    def normalize_path(self, path: str) -> str:
        return path

    def open_output_stream(self, path: str, metadata: object) -> pa.NativeFile:
        self.asked.append(("open", path))
        return pa.BufferOutputStream()

    def move(self, src: str, dest: str) -> None:
        self.asked.append(("move", src, dest))

    def nothing(self, *_: object) -> None:
        raise NotImplementedError

    get_file_info = get_file_info_selector = create_dir = delete_dir = delete_dir_contents = nothing
    delete_root_dir_contents = delete_file = copy_file = open_input_stream = open_input_file = nothing
    open_append_stream = nothing


def test_where_a_file_is_seen_while_it_is_written_it_is_moved_into_its_place() -> None:
    handler = Hdfs()
    with filesystems.appearing_whole(pafs.PyFileSystem(handler), "a/f") as sink:
        sink.write(b"x")
    (_, opened), moved = handler.asked
    assert opened.startswith("a/f.")
    assert moved == ("move", opened, "a/f")
