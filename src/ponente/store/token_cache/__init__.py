"""The token cache: columns of tokens in segments of zarr 3, a ledger, and a marker written last."""
