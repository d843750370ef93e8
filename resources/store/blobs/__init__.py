"""Storage for the bytes of a store.

`blobs` defines the interface. `folder` and `bucket` implement it for a local folder and an S3 bucket; `read_only` wraps
either. `bucket` uses `s3` for requests and `file_cache` for local copies. `object_names` maps digests to blob names.
"""
