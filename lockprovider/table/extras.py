"""Check that the packages of the extra `table` are installed; `lockprovider.table` imports this module first."""

from importlib.util import find_spec

NEEDED = ("pyarrow", "fastavro", "numpy")

for _name in NEEDED:
    if find_spec(_name) is None:
        raise ModuleNotFoundError(
            f"lockprovider.table needs {_name}, which is not installed: install the extra 'table' of fsspec-cas",
            name=_name,
        )
