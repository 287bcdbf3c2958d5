"""The journal replicated on three voters by Raft, on top of pysyncobj."""
