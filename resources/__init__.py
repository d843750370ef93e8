"""The foundation of stages and loaders.

Each module or folder imports only from those before it:

- `digest`: BLAKE3 digests of bytes and JSON.
- `file_lock`: advisory locks between processes.
- `exceptions`: causes and texts of exceptions that other libraries raise.
- `tables`: functions on Arrow tables and ragged arrays.
- `engines`: threads and worker processes that compute chunks in parallel.
- `templates`: prompt and chat templates, sandboxed.
- `store`: the artifact store, a content-addressed build cache.
- `images`: image files: their size, whether they can be decoded, and their pixels.
- `processors`: image processors: what an image becomes in tokens and in a batch.
- `sources`: where a dataset's rows come from (files, URLs, the Hugging Face Hub, tensorflow_datasets).
- `tokenizers`: reads tokenizers of any format and converts them to tokenizer.json.
"""
