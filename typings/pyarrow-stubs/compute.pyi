# pyarrow makes its kernels at import time, where no type checker sees them.
from typing import Any

def __getattr__(name: str) -> Any: ...
