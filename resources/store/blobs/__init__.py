"""Storage for the bytes of a store.

`blobs` defines the interface. `folder` and `bucket` implement it for a local folder and an S3 bucket, which uses
`file_cache` for local copies.
"""
