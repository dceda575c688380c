"""Whether an LMDB file is as long as its content needs, found by reading it, before anyone maps it.

Reading a mapped page that lies behind the end of the file kills the process (SIGBUS), so a truncated file must be found
before LMDB opens it. The last page number in the file's header alone does not tell: pages that one transaction took at
the end and gave back are never written, so a healthy file may end a little before its last page. Only when the file is
shorter than the header says are its trees walked, for the last page that they use.

Knows LMDB's file format, data version 1 (LMDB 0.9). Of any other file it knows nothing and says nothing: LMDB refuses
those by itself.
"""

import os
import struct
from pathlib import Path

_META = struct.Struct("=16xII16x48s48sQQ")
"""Page header, magic, version, (address, map size), free-list tree, main tree, last page, transaction."""
_TREE = struct.Struct("=IHHQQQQQ")
"""Page size (in the free list's), flags, depth, branch, leaf and overflow pages, entries, root."""
_PAGE = struct.Struct("=QHHHH")
_NODE = struct.Struct("=HHHH")
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_NO_ROOT = (1 << 64) - 1
_BRANCH, _LEAF = 0x01, 0x02
_BIG_DATA, _SUB_TREE = 0x01, 0x02
_PAGE_BYTES_MIN, _PAGE_BYTES_MAX = 512, 65536


def missing_bytes(path: Path) -> int:
    """How many bytes the file at `path` lacks at its end; 0 when nothing that it uses is missing. Raises `OSError`."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size_bytes = os.fstat(fd).st_size
        newest = _newest_meta(fd)
        if newest is None:
            return 0
        free_list, main, last_page, page_bytes = newest
        if size_bytes >= (last_page + 1) * page_bytes:
            return 0
        pages = size_bytes // page_bytes
        last_used: int = max(_last_used(fd, tree, pages, page_bytes) for tree in (free_list, main))
        return (last_used + 1) * page_bytes - size_bytes if last_used >= pages else 0
    finally:
        os.close(fd)


def _newest_meta(fd: int) -> tuple[bytes, bytes, int, int] | None:
    """Free list, main tree, last page and page size of the newer header; None: not a file of this format."""
    found: list[tuple[int, tuple[bytes, bytes, int, int]]] = []
    offset = 0
    for _ in range(2):
        data = os.pread(fd, _META.size, offset)
        if len(data) < _META.size:
            return None
        magic, version, free_list, main, last_page, transaction = _META.unpack(data)
        page_bytes = _TREE.unpack(free_list)[0]
        if (magic, version) != (_MAGIC, _VERSION) or not _PAGE_BYTES_MIN <= page_bytes <= _PAGE_BYTES_MAX:
            return None
        found.append((transaction, (free_list, main, last_page, page_bytes)))
        offset = page_bytes
    return max(found, key=lambda meta: meta[0])[1]


def _last_used(fd: int, tree: bytes, pages: int, page_bytes: int) -> int:
    """The last page of a tree, or the first one found at or behind `pages`, where the file ends; 1: the headers."""
    last: int = 1
    waiting: list[int] = [_TREE.unpack(tree)[-1]]
    visits = 0
    while waiting and visits < pages:  # damaged pages may name each other in a circle
        visits += 1
        number = waiting.pop()
        if number == _NO_ROOT:
            continue
        last = max(last, number)
        if number >= pages:
            return last
        page = os.pread(fd, page_bytes, number * page_bytes)
        _, _, flags, lower, _ = _PAGE.unpack_from(page)
        for index in range((min(lower, page_bytes) - _PAGE.size) // 2):
            (place,) = struct.unpack_from("=H", page, _PAGE.size + 2 * index)
            if place + _NODE.size > page_bytes:
                continue  # a damaged page, which is not for here to judge
            low, high, node_flags, key_bytes = _NODE.unpack_from(page, place)
            data = place + _NODE.size + key_bytes
            if flags & _BRANCH:
                waiting.append(low | high << 16 | node_flags << 32)
            elif not flags & _LEAF:
                break
            elif node_flags & _SUB_TREE and data + _TREE.size <= page_bytes:
                waiting.append(_TREE.unpack_from(page, data)[-1])
            elif node_flags & _BIG_DATA and data + 8 <= page_bytes:
                (first,) = struct.unpack_from("=Q", page, data)
                last = max(last, first + (_PAGE.size + (low | high << 16) - 1) // page_bytes)
                if last >= pages:
                    return last
    return last
