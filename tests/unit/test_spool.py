"""The spool: in order, nothing acknowledged is lost, torn tails are left out."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from data_bridge import spool as module
from data_bridge.spool import Spool


def take_all(spool: Spool) -> list[bytes]:
    records = []
    while (taken := spool.take(2, 10**6)) is not None:
        records += taken.records
        spool.done(taken)
    return records


async def test_records_come_out_in_order_and_the_folder_is_empty_afterwards(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for number in range(5):
        await spool.append(b"record %d" % number)
    assert take_all(spool) == [b"record %d" % number for number in range(5)]
    assert spool.is_empty
    await spool.close()
    assert list(tmp_path.iterdir()) == []


async def test_appends_at_the_same_time_share_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []
    write = module._write

    def write_and_count(segment: module._Segment, frames: bytes) -> None:
        writes.append(frames)
        write(segment, frames)

    monkeypatch.setattr(module, "_write", write_and_count)
    spool = Spool(tmp_path)
    await asyncio.gather(*(spool.append(b"x") for _ in range(100)))
    assert len(writes) < 5
    assert len(take_all(spool)) == 100
    await spool.close()


async def test_what_was_not_done_is_found_by_the_next_process_oldest_first(tmp_path: Path) -> None:
    first = Spool(tmp_path)
    await first.append(b"a")
    await first.append(b"b")
    await first.close()
    second = Spool(tmp_path)
    await second.append(b"c")
    assert second.adopt() == 1
    assert take_all(second) == [b"a", b"b", b"c"]
    await second.close()
    assert list(tmp_path.iterdir()) == []


async def test_a_segment_of_a_living_process_is_left_alone(tmp_path: Path) -> None:
    alive, other = Spool(tmp_path), Spool(tmp_path)
    await alive.append(b"mine")
    assert other.adopt() == 0
    assert take_all(alive) == [b"mine"]
    await alive.close()
    await other.close()


async def test_a_segment_of_another_user_is_left_to_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "1-theirs.spool").write_bytes(b"")

    def not_ours(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.open", not_ours)
    assert Spool(tmp_path).adopt() == 0


@pytest.mark.parametrize("cut", [1, 4, 9, 12])
async def test_a_torn_tail_is_left_out(tmp_path: Path, cut: int) -> None:
    spool = Spool(tmp_path)
    await spool.append(b"whole")
    await spool.append(b"torn")
    await spool.close()
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-cut])

    survivor = Spool(tmp_path)
    survivor.adopt()
    assert take_all(survivor) == [b"whole"]
    await survivor.close()
    assert list(tmp_path.iterdir()) == []


async def test_a_tail_of_zeros_as_after_a_power_cut_is_left_out(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    await spool.append(b"whole")
    await spool.close()
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes() + bytes(64))
    survivor = Spool(tmp_path)
    survivor.adopt()
    assert take_all(survivor) == [b"whole"]
    await survivor.close()


async def test_damage_with_records_behind_it_is_kept_for_inspection(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for record in (b"first", b"second", b"third"):
        await spool.append(record)
    await spool.close()
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes().replace(b"second", b"sXcond"))
    survivor = Spool(tmp_path)
    survivor.adopt()
    assert take_all(survivor) == [b"first"]
    await survivor.close()
    assert [kept.suffix for kept in tmp_path.iterdir()] == [".damaged"]


async def test_a_full_disk_is_told_to_the_writer_and_leaves_no_half_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path)
    await spool.append(b"before")
    with monkeypatch.context() as full:

        def sync_fails(_: int) -> None:
            raise OSError(28, "No space left on device")

        full.setattr("os.fdatasync", sync_fails)
        with pytest.raises(OSError, match="No space"):
            await spool.append(b"lost")
    await spool.append(b"after")
    assert take_all(spool) == [b"before", b"after"]
    await spool.close()


async def test_a_large_spool_gives_its_disk_space_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SEGMENT_BYTES", 100)
    spool = Spool(tmp_path)
    for _ in range(10):
        await spool.append(bytes(60))
        assert take_all(spool) == [bytes(60)]
    assert len(list(tmp_path.iterdir())) == 1
    await spool.close()
