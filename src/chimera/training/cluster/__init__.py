"""The engine as strategies see it: workers, servers, gathering of results, sharding of data, snapshots, heartbeats."""
