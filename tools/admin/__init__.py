"""What `esker admin` does: looks at a cluster's catalog and metadata, checks and repairs them."""
