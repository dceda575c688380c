"""`esker failover`: what clients notice when drives' workers die or hang."""
