"""`esker bench`: the cluster against the drives beneath it, in turn, in one run."""
