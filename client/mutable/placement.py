"""On which chain of its chain table a mutable chunk lies.

Consecutive chunks of an object lie on consecutive chains, so that a long read or write is many drives' work; objects
begin at chains that their ids scatter. A table's version never changes, so neither does the place of a chunk in it.
"""

from xxhash import xxh3_64_intdigest


def chain_number(object_id: bytes, index: int, chain_count: int) -> int:
    """The index in the table's list of chains."""
    return (xxh3_64_intdigest(object_id) + index) % chain_count
