"""The place of the FUSE mount, which this version does not have yet."""
