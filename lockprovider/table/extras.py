"""What tables need besides the distribution's own requirements; imported first, so that who lacks it is told so."""

from importlib.util import find_spec

NEEDED = ("pyarrow", "fastavro", "numpy")

for _name in NEEDED:
    if find_spec(_name) is None:
        raise ModuleNotFoundError(
            f"lockprovider.table needs {_name}, which is not installed: install the extra 'table' of fsspec-cas",
            name=_name,
        )
