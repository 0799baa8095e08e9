"""How gradients and parameters are kept the same on all replicas."""

from dse.sync.data_parallel import SCALARS, SYNC_AXES, SyncCall, SyncTable, sync_calls, sync_table

__all__ = ["SCALARS", "SYNC_AXES", "SyncCall", "SyncTable", "sync_calls", "sync_table"]
