"""The manager takes chains to their goals: through deaths of those who come, and with everybody's leases respected."""

from esker.meta.admin_growth import set_goals
from esker.meta.cluster import join
from esker.wire.admin_messages import SetGoals
from esker.wire.types import ChainGoal

from .conftest import dead, worker
from .test_chain_manager import Server, others, server

__all__ = ["server"]

LEASES_S = 5.0
"""Longer than any lease that has to end before SERVING is taken away."""


async def test_a_chain_gets_the_drives_that_it_shall_have(server: Server) -> None:
    chain = await server.chain()
    stays = others(chain, "d0")
    await join(server.store, worker(3), dead)
    server.lives["d3"] = "first"
    version = (await server.routing.newest()).version
    goal = ChainGoal(chain.chain_id, (stays, "d3"), ("d3",))
    await set_goals(server.store, SetGoals(version, (goal,)), 1)
    await server.passes(1.0)
    assert (await server.text(chain.chain_id)).endswith("d3:Y")
    assert len((await server.routing.newest()).chains[chain.chain_id - 1].replicas) == 3

    server.silent = {"d3"}
    await server.passes(LEASES_S)
    assert (await server.text(chain.chain_id)).endswith("d3:O"), "whoever is to replace it died"
    assert "d0:S" in await server.text(chain.chain_id), "so nobody leaves"
    server.silent = set()
    await server.passes(1.0)
    syncing = (await server.routing.newest()).chains[chain.chain_id - 1]
    server.synced = ((chain.chain_id, syncing.version),)
    await server.passes(LEASES_S)
    assert await server.text(chain.chain_id) == f"{stays}:S d3:S"
    after = await server.routing.newest()
    assert after.goals == ()
    await server.passes(LEASES_S)
    assert (await server.routing.newest()).version == after.version, "then it is at rest"


async def test_a_chain_that_only_caches_begins_anew_where_its_drives_are_dead(server: Server) -> None:
    chain = await server.chain()
    await join(server.store, worker(3), dead)
    server.lives["d3"] = "first"
    server.silent = {each.drive_id for each in chain.replicas}
    version = (await server.routing.newest()).version
    await set_goals(server.store, SetGoals(version, (ChainGoal(chain.chain_id, ("d3",), ("d3",), fresh=True),)), 1)
    await server.passes(2 * LEASES_S)
    assert await server.text(chain.chain_id) == "d3:S"
    assert (await server.routing.newest()).goals == ()


async def test_another_manager_goes_on_with_what_was_begun(server: Server) -> None:
    chain = await server.chain()
    stays = others(chain, "d0")
    await join(server.store, worker(3), dead)
    server.lives["d3"] = "first"
    version = (await server.routing.newest()).version
    await set_goals(server.store, SetGoals(version, (ChainGoal(chain.chain_id, (stays, "d3"), ("d3",)),)), 1)
    await server.passes(1.0)
    await server.manager.give_up()
    other = Server(server.store)
    other.lives = server.lives
    await other.manager.step()
    syncing = (await other.routing.newest()).chains[chain.chain_id - 1]
    other.synced = ((chain.chain_id, syncing.version),)
    await other.passes(2 * LEASES_S)
    assert await other.text(chain.chain_id) == f"{stays}:S d3:S"
    assert (await other.routing.newest()).goals == ()
