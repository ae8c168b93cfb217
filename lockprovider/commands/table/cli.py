"""`lockprovider table`: look at a table, and run its services."""

from __future__ import annotations

import argparse

from lockprovider.commands.place import Commands
from lockprovider.commands.table import create, queries, services
from lockprovider.commands.table.options import TABLE_CODES

_EXAMPLES = """examples:
  lockprovider table create s3://bucket/trips --column id:int64 --column city:string --key id --partition-by city
  lockprovider table log s3://bucket/trips --last 10
  lockprovider table read s3://bucket/trips --columns id,city --as-of 20261121093000000
  lockprovider table clean s3://bucket/trips --hours 24 --dry-run
  lockprovider table archive s3://bucket/trips --keep-min 50 --keep-max 100
  lockprovider table savepoint s3://bucket/trips --comment 'before the move'
  lockprovider table timeline s3://bucket/trips --svg trips.svg
  lockprovider table doctor s3://bucket/trips"""


def add(commands: Commands) -> None:
    """Register `table` and all its commands."""
    text = "Look at a Hudi table, and run its services."
    parent = commands.add_parser(
        "table",
        help=text,
        description=text,
        epilog=f"{_EXAMPLES}\n\n{TABLE_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    table = parent.add_subparsers(required=True, metavar="COMMAND")
    create.add(table)
    queries.add(table)
    services.add(table)
    queries.add_doctor(table)
