"""`esker replay`: a KV-cache request trace against a cluster, with every byte that is read checked."""
